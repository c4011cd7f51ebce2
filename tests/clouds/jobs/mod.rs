//! Whole jobs on pools in clouds: the real binary, called by a simulated GitLab Runner.

/// The same tests for each cloud.
macro_rules! on_both_clouds {
    ($($test:ident),* $(,)?) => {
        mod ec2 { $(
            #[test]
            fn $test() {
                super::$test(crate::cloud::Cloud::Ec2);
            }
        )* }
        mod gce { $(
            #[test]
            fn $test() {
                super::$test(crate::cloud::Cloud::Gce);
            }
        )* }
    };
}

mod announced;
mod copies;
mod crowd;
mod elsewhere;
mod ends;
mod faults;
mod kills;
mod moved;
mod repeats;
mod stock;
mod storm;
mod work;
