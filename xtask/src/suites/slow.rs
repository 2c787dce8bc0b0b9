//! The tests with real containers that take more than a minute.

/// Each test of the check that takes more than a minute, at least on a busy machine, and why. They begin first.
pub(super) const SLOW: &[(&str, &str)] = &[
    (
        "misbehaving::faults_of_the_api_server_cost_neither_pods_nor_memory_and_are_retried_with_back_off",
        "the back-off after each of its faults",
    ),
    ("misbehaving::so_are_faults_of_an_api_server_with_http2", "the back-off after each fault"),
    ("soak::nothing_grows_by_pods_that_come_and_go", "hundreds of pods, one after another"),
    (
        "misbehaving::a_pod_whose_status_the_api_server_cannot_take_keeps_no_other_from_being_reported",
        "the back-off of rejected statuses, and pods of many megabytes",
    ),
    (
        "misbehaving::a_watch_resumes_from_a_bookmark_and_after_410_gone_the_pods_are_listed_again",
        "several ends of watches, each with its back-off",
    ),
    ("fields::each_field_has_an_effect_of_its_own", "pods for each field, in batches"),
    (
        "misbehaving::redirects_upgrades_and_large_heads_are_neither_followed_nor_kept",
        "the back-off after each of them",
    ),
    (
        "sync::a_board_connects_once_per_interval_on_request_and_when_a_link_comes_up",
        "the least interval between two connections",
    ),
    (
        "sync::a_metered_board_sends_less_than_another_one_at_the_same_time",
        "what both send in a minute is compared",
    ),
    ("soak::nothing_grows_by_restarts_and_exec_probes", "hundreds of restarts and probes"),
    (
        "kubelet_server::the_certificate_is_replaced_before_it_expires_and_nobody_notices",
        "the life of a short-lived certificate",
    ),
    (
        "at_most_one::handover::a_fencing_period_lets_the_handover_of_a_volume_continue_without_the_first_node",
        "the time until a cluster takes a node for lost, and the fencing period",
    ),
    (
        "at_most_one::handover::a_partition_after_step_11_delays_the_handover_of_a_volume_until_the_first_node_returns",
        "the time until a cluster takes a node for lost",
    ),
    (
        "rejections::deployments_whose_pods_the_board_rejects_make_few_of_them",
        "the pods that a controller makes in a minute are counted",
    ),
    (
        "cluster_pods::a_server_without_http2_has_its_pods_watched_and_its_objects_read_each_minute",
        "objects are read each minute",
    ),
    (
        "devices::watches::without_an_instance_of_inotify_each_watcher_looks_from_time_to_time",
        "the interval of each watcher",
    ),
    (
        "enrolment::a_board_enrols_by_itself_and_again_when_its_certificate_has_expired_until_it_leaves",
        "the life of a certificate",
    ),
    (
        "slow::a_card_that_answers_no_more_makes_the_agent_unhealthy_until_it_recovers",
        "the minute of `healthcheck`",
    ),
    (
        "sync::a_board_that_stays_connected_and_has_no_pods_of_the_cluster_sends_little",
        "what it sends in a minute is counted",
    ),
    (
        "kubelet_server::a_request_that_nobody_approves_is_reported_and_denied_ones_are_repeated_later_and_later",
        "the pauses between requests, which grow",
    ),
    (
        "at_most_one::fencing::a_pod_that_is_still_wanted_starts_again_only_after_the_cluster_has_confirmed_it_also_after_a_reboot",
        "the fencing period, twice",
    ),
    (
        "at_most_one::fencing::a_pod_of_a_lost_node_ends_before_force_deletion_starts_it_elsewhere_and_stays_ended_when_the_node_returns",
        "the time until a cluster takes a node for lost",
    ),
    (
        "cluster::a_pod_that_the_board_cannot_run_is_rejected_with_an_event",
        "a board deletes a pod that it has rejected, and that the cluster deletes, within a minute",
    ),
    (
        "cluster_pods::labels_that_could_not_be_stored_are_stored_later_and_a_damaged_file_of_them_is_reported",
        "the interval at which a file that could not be written is written again",
    ),
    ("workloads::jobs_complete_each_index_and_a_cron_job_starts_them", "a CronJob of each minute"),
    (
        "misbehaving::rejected_pods_and_pods_of_files_that_the_api_server_cannot_take_keep_no_other_from_being_reported",
        "the back-off of rejected statuses",
    ),
    ("at_most_one::failures::master_node_partition", "the time until a cluster takes a node for lost, twice"),
    ("bounded::a_thousand_clients_that_read_nothing_keep_nobody_out", "a thousand clients"),
];
