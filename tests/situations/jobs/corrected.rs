//! Kind: what an operator has corrected is tried immediately.

use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use toml::Table;

/// Denied credentials stop launches for minutes. A corrected table of the provider ends that.
#[test]
fn a_corrected_table_of_the_provider_ends_the_launch_back_off() {
    for class in ["denied", "quota", "transient"] {
        let setting = Setting::new().timing("launch_backoff", "1h").timing("launch_backoff_max", "1h");
        let setting = setting.timing("quota_backoff", "1h");
        let fault = Table::from_iter([("class".to_owned(), class.into()), ("first".to_owned(), 1.into())]);
        let place = setting.clone().provider("fail_launch", fault).open();
        let job = place.runner().start(&Job::new(1));
        job.wait_for_log("injected by `fail_launch`");
        place.write_config(&setting.text(&place.state_dir));
        job.finish().expect_outcome(&Outcome::Success);
        place.expect_sound();
    }
}
