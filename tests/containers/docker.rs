//! Tests once more, with Debian's Docker: each machine has a daemon of its own. And its mirrors.

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::engine::on_docker;
use crate::pool::{containers, job, plain, setting};
use crate::site::{PLAIN, STOPPED, Site, site};
use crate::{
    accounts, debug, examples, limits, owners, pipelines, platforms, registries, secrets, services, shells,
    situation_apart, starts, stopping,
};

macro_rules! with_docker {
    ($($(#[$kept:meta])* $module:ident::$test:ident;)*) => {
        $(
            #[test]
            $(#[$kept])*
            fn $test() {
                on_docker($module::$test);
            }
        )*
    };
}

with_docker! {
    accounts::a_job_is_explained_with_its_images_its_services_and_its_failure;
    #[ignore = "in `scripts/test --full`"]
    accounts::a_running_job_is_shown_with_its_image;
    #[ignore = "in `scripts/test --full`"]
    debug::a_job_that_asks_for_it_sees_each_line_of_its_services_once;
    #[ignore = "in `scripts/test --full`"]
    debug::a_service_that_writes_without_end_stalls_no_stage_and_is_shown_in_part;
    debug::the_last_lines_of_a_service_that_dies_are_shown_once;
    #[ignore = "in `scripts/test --full`"]
    examples::the_examples_of_the_page_run;
    limits::limits_and_gpus_of_the_pool_reach_the_engine_for_all_containers;
    #[ignore = "in `scripts/test --full`"]
    owners::a_user_and_a_group_of_the_job_are_found_by_name_or_number;
    owners::with_the_feature_flag_the_images_user_owns_the_sources;
    #[ignore = "in `scripts/test --full`"]
    pipelines::a_job_without_an_image_runs_on_the_machine_and_hears_that_its_services_are_ignored;
    pipelines::an_image_of_docker_hub_comes_from_the_mirror;
    #[ignore = "in `scripts/test --full`"]
    pipelines::artifacts_and_caches_pass_between_jobs_on_different_machines;
    pipelines::scripts_keep_their_exit_codes_and_after_script_sees_what_they_left;
    #[ignore = "in `scripts/test --full`"]
    pipelines::the_container_has_the_variables_of_the_job_and_the_directories_of_the_machine;
    pipelines::the_job_and_the_pool_choose_the_user_the_volumes_and_the_options;
    #[ignore = "in `scripts/test --full`"]
    pipelines::twenty_jobs_on_four_machines_all_run_once;
    platforms::an_image_is_for_the_machine_or_for_the_platform_that_the_job_names;
    #[ignore = "in `scripts/test --full`"]
    platforms::an_image_of_another_platform_that_is_there_is_pulled_for_this_one;
    registries::a_job_and_its_services_in_the_same_image_pull_it_once;
    registries::a_private_image_is_pulled_with_each_source_of_credentials;
    #[ignore = "in `scripts/test --full`"]
    registries::a_registry_that_recovers_within_three_tries_serves_the_job;
    #[ignore = "in `scripts/test --full`"]
    registries::a_registry_that_stalls_is_given_up_after_pull_timeout;
    registries::a_registry_with_a_certificate_of_its_own_is_trusted_if_the_pool_says_so;
    registries::an_image_or_tag_that_does_not_exist_fails_the_job_and_takes_one_machine;
    #[ignore = "in `scripts/test --full`"]
    registries::an_instance_whose_disk_is_full_is_replaced;
    #[ignore = "in `scripts/test --full`"]
    registries::without_the_right_password_the_job_fails_and_takes_one_machine;
    secrets::a_password_is_gone_before_the_first_step_and_a_token_is_not_in_services;
    services::a_service_that_dies_is_reported_with_its_code_and_last_lines_and_the_job_goes_on;
    services::services_reach_each_other_and_the_job_reaches_both_by_all_their_names;
    situation_apart::a_jobs_server_answers_no_other_job_on_the_machine;
    situation_apart::beside_a_running_job_only_the_containers_of_the_other_one_go;
    situation_apart::in_a_network_of_its_own_a_job_has_its_names_and_reaches_others;
    situation_apart::the_next_job_on_a_machine_finds_no_container_of_the_last_one;
    situation_apart::what_a_job_made_itself_with_the_engine_goes_and_what_the_operator_brought_stays;
    situation_apart::where_jobs_run_beside_each_other_the_operators_password_stays_away_unless_it_is_shared;
    shells::a_script_runs_in_its_image_or_the_job_fails_with_the_reason;
    starts::an_engine_that_hangs_is_a_system_failure_within_its_limit;
    #[ignore = "in `scripts/test --full`"]
    starts::an_entrypoint_that_takes_longer_than_the_limit_is_waited_for;
    stopping::a_cancelled_job_runs_its_after_script_in_its_container;
    stopping::a_container_that_is_killed_ends_its_stage_and_the_next_one_starts_it_again;
    #[ignore = "in `scripts/test --full`"]
    stopping::a_script_whose_link_and_run_are_killed_ends_although_nothing_connects_again;
    #[ignore = "in `scripts/test --full`"]
    stopping::a_script_whose_link_is_killed_ends_without_another_stage;
    stopping::a_script_whose_run_is_killed_ends;
    #[ignore = "in `scripts/test --full`"]
    stopping::a_stopped_script_leaves_no_process_and_its_files;
}

/// A job in this image, with a mirror for its registry, on one machine.
fn mirrored(site: &Site, registry: &str, mirror: &str) -> Place {
    let setting = containers(site, |table| {
        let mirrors = toml::Table::from_iter([(registry.to_owned(), format!("http://{mirror}").into())]);
        table.insert("mirrors".into(), mirrors.into());
    });
    setting.pool("max_instances", 1).pool("max_use_count", 2).open()
}

#[test]
fn a_mirror_that_is_down_is_named_and_the_registry_itself_serves_the_job() {
    on_docker(|| {
        let Some(site) = site() else { return };
        let place = mirrored(site, PLAIN, STOPPED);
        let result = place.run(&job(1, "ash:1").script(["echo the script ran"]));
        result.expect_outcome(&Outcome::Success);
        let log = result.log_text();
        for said in [&format!("was not pulled: mirror {STOPPED}: "), "ash:1` again", "\nthe script ran\n"] {
            assert!(log.contains(said), "{said}: {log}");
        }
        place.expect_sound();
    });
}

/// Docker reads both outputs of a container concurrently, so its record may have them in this order, too, if the error is last.
#[test]
fn an_error_that_docker_records_before_other_lines_is_shown() {
    on_docker(|| {
        let Some(site) = site() else { return };
        let place = setting(site).open();
        let script =
            "echo 'no license found' >&2; sleep 1; for i in $(seq 30); do echo line $i; done; exit 7";
        let service = json!({"name": plain("dies:1"), "entrypoint": ["sh", "-c", script]});
        let result = place.run(&job(1, "ash:1").service(service));
        result.expect_outcome(&Outcome::Success);
        let log = result.log_text();
        for said in ["with status 7", "| no license found\n", "| line 30\n"] {
            assert!(log.contains(said), "{said}: {log}");
        }
        place.expect_sound();
    });
}

#[test]
fn an_image_by_its_digest_comes_from_the_mirror_and_is_found_again() {
    on_docker(|| {
        let Some(site) = site() else { return };
        let place = mirrored(site, "mirrored.test", PLAIN);
        let link = "registry/docker/registry/v2/repositories/ash/_manifests/tags/1/current/link";
        let digest = std::fs::read_to_string(site.dir.join(link)).expect("a digest");
        let image = format!("mirrored.test/ash@{digest}");
        for id in [1, 2] {
            let job = Job::new(id).image(&image).image_option("pull_policy", json!(["if-not-present"]));
            let result = place.run(&job);
            result.expect_outcome(&Outcome::Success);
            assert_eq!(
                result.log_text().contains("is on the instance already"),
                id == 2,
                "{}",
                result.describe()
            );
        }
        place.expect_sound();
    });
}
