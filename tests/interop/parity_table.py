# SPDX-License-Identifier: Apache-2.0
"""The rows of launcher/torchrun.md's table of differences: what each may change, and which test shows it.

EXPLAINS is for rows that the parity test sees: topic -> what it may change, as a regular expression for the aspects of
parity_runs.Run.observe(). ADDS is for what muster has besides, with any command line. SHOWN_BY is for the others: topic -> the file and a test in it that shows muster's side.
"""
import json
import re

from launcher_support import ROOT

_WORKER = r" of node \d+, rank \d+, attempt \d+"

# Of these everything may differ that only one of the two has: it started workers, wrote files or went on, the other did not.
ONLY_ONE_HAS = {
    "`/` in `--rdzv-id`": r".*" + _WORKER + r"|file .*",
    "`--max-restarts`": r".* of node 0, rank 0, attempt 1",
    "`-r`/`-t` local ranks": r".*" + _WORKER + r"|file .*",
}

EXPLAINS = {
    "exit status": r"status of node \d+",
    "wrong values": r"accepted",
    "a program that is not a `.py` file": r"(status|stdout|title|root cause|other failures|stderr) of node 0",
    "interpreter without `PYTHON_EXEC`": r"command" + _WORKER,
    "`--run-path`": r"(command|leads|ignored|descriptors|SigIgn)" + _WORKER + r"|title of node 0",
    "one node, no port given": r"MASTER_ADDR" + _WORKER,
    "`--rdzv-id` with `--standalone` or nothing else": r"(TORCHELASTIC_RUN_ID|TORCHELASTIC_ERROR_FILE)" + _WORKER,
    "`/` in `--rdzv-id`": r"(status|stdout|stderr) of node 0",
    "`--max-restarts`": "",
    "failure on another node": r"status of node 0|node 0 is told",
    "signals": r"a second signal ends the grace",
    "`--shutdown-timeout`": r"other stops are as short",
    "children that workers leave behind": r"a child is left",
    "c10d: network interface": r"NCCL_SOCKET_IFNAME" + _WORKER,
    "report": r"(title|root cause|other failures) of node \d+",
    "an error file that is not what `@record` writes": r"(title|root cause|other failures) of node 0",
    "`-r`/`-t` local ranks": r"(status|stdout|stderr) of node 0",
    "log directory without `--log-dir`": r"TORCHELASTIC_ERROR_FILE" + _WORKER + r"|files left in TMPDIR",
    "`TORCHELASTIC_ENABLE_FILE_TIMER=1`": r"TORCHELASTIC_TIMER_FILE" + _WORKER + r"|files left in TMPDIR",
    "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`": r"TORCHELASTIC_USE_AGENT_STORE" + _WORKER,
    "`python -m torch.distributed.launch`": r"(argv|command)" + _WORKER,
    "`OMP_NUM_THREADS` not set, several workers": r"warns of OMP_NUM_THREADS|OMP_NUM_THREADS" + _WORKER,
    "`--event-log-handler=console`": r"events on stderr",
}

ADDS = {
    "`OMP_NUM_THREADS` not set, one worker, CPU time limited below its CPUs": r"OMP_NUM_THREADS" + _WORKER,
    "`CUDA_DEVICE_ORDER` not set, GPUs there": r"CUDA_DEVICE_ORDER" + _WORKER,
    "`MUSTER_*`": r"MUSTER_\w+" + _WORKER,
    "log directory with `-r` or `-t`": r"file .*/generation_\d+/.*\.(out|err)",
    "report of a failure with `--log-dir`": r"file .*/report\.json",
}

_LIFE, _NODES = "tests/system/test_launcher_life.py", "tests/system/test_launcher_nodes.py"
_REFUSED = "contradictions are refused with what is right"
_ELASTIC, _FAULTS = "tests/system/test_launcher_elastic.py", "tests/system/test_launcher_elastic_faults.py"
_JOINING = "tests/system/test_launcher_joining.py"

SHOWN_BY = {
    "`TORCHELASTIC_HEALTH_CHECK_PORT`, metrics": (
        "tests/system/test_metrics.py", "test_health_is_answered_before_the_nodes_have_met_and_until_the_end"),
    "workers that hang": ("tests/unit/launcher/hang_test.cc", "who tells nothing of its progress never hangs without a fixed timeout"),
    "control groups": (
        "tests/system/test_launcher_cgroup.py", "test_each_worker_has_a_group_of_its_own_and_none_is_left"),
    "after an attempt on GPUs": (
        "tests/system/test_launcher_gpu_release.py",
        "test_who_still_holds_gpu_memory_is_named_after_a_success_too_and_children_of_workers_are_known"),
    "a worker that ends with 85": (
        "tests/system/test_launcher_preemption.py",
        "test_a_worker_that_ends_of_a_signal_of_its_own_is_waited_for_by_the_others"),
    "more workers than CPUs that were left to the launcher (taskset, a cgroup, srun without `-c`)": (
        "tests/system/test_launcher_placement.py", "test_workers_that_share_a_cpu_of_several_are_told_once"),
    "several nodes in a Slurm job, one launcher without srun": (
        "tests/system/test_launcher_placement.py", "test_a_batch_script_s_idle_nodes_are_said_unless_one_is_meant"),
    "`--local-addr` with an address of this host": (
        "tests/system/test_launcher_places.py", "test_the_first_node_of_a_static_job_listens_at_its_address_only"),
    "Slurm": ("tests/slurm/test_slurm_launch.py", "test_nodes_ranks_and_head_come_from_the_step"),
    "a pause before a restart, failures that are not restarted": (
        "tests/unit/launcher/restart_rules_test.cc", "what no-restart-on names is final, whatever restart-on names"),
    "restarts that lead nowhere": (
        "tests/system/test_launcher_restart_rules.py", "test_restarts_that_gain_no_step_end_the_job_with_what_was_reached"),
    "when no restart is left": (
        "tests/system/test_launcher_restart_rules.py", "test_the_last_failure_may_have_an_exit_code_of_its_own"),
    "c10d: a node that joins while the job runs": (
        "tests/system/test_launcher_safe_point.py", "test_a_joiner_waits_for_the_checkpoint_and_no_step_is_lost"),
    "one node, `--master-addr` or an endpoint given": (
        "tests/system/test_listeners.py", "test_one_node_listens_on_loopback_alone_however_it_is_started"),
    "`--print-completion`": ("tests/system/test_launcher_contract.py", "test_a_shell_learns_the_options"),
    "`--numa-binding`": ("tests/system/test_launcher_placement.py", "test_torchruns_names_for_bindings_are_known"),
    "`--logs-specs`": (
        "tests/interop/test_torchrun_parity_options.py", "test_what_muster_has_not_is_refused_with_what_to_use_instead"),
    "etcd": ("tests/system/test_launcher_etcd.py", "test_agents_join_over_etcd_and_pytorch_sums"),
    "store after a restart": (_LIFE, "test_restarts_count_up_to_the_limit_with_a_fresh_store_each_at_one_port"),
    "`error_file` in the report, without `--log-dir`, `-r` and `-t`": (
        _LIFE, "test_error_files_of_record_reach_the_report_and_the_outer_error_file"),
    "more workers than GPUs": (
        "tests/system/test_launcher_placement.py", "test_two_ranks_on_one_gpu_need_a_word_where_muster_gives_them_out"),
    "a signal before the first start": (_NODES, "test_a_node_that_stops_while_waiting_makes_room_for_another"),
    "`--nproc-per-node=xpu`, or a private back end's name": ("tests/unit/launcher/job_plan_test.cc", _REFUSED),
    "c10d without an endpoint, several nodes": ("tests/unit/launcher/job_plan_test.cc", _REFUSED),
    "rendezvous plug-ins (entry points `torchrun.handlers`)": ("tests/unit/launcher/job_plan_test.cc", _REFUSED),
    "c10d: `timeout=` in `--rdzv-conf`": (
        "tests/unit/launcher/rdzv_conf_test.cc", "timeout is the join timeout where that is not given"),
    "c10d: `store_type=file`": ("tests/unit/launcher/rdzv_conf_test.cc", "what is wrong is refused with what is right"),
    "its own messages": (_LIFE, "test_the_first_failure_stops_the_others_and_is_reported"),
    "what a node needs": (_LIFE, "test_the_binary_needs_glibc_only"),
    "`--nproc-per-node` not given": ("tests/unit/launcher/job_plan_test.cc", "one worker per GPU where there are GPUs, else one"),
    "`--standalone` or static with a range of nodes, `--standalone` with several": (
        "tests/unit/launcher/job_plan_test.cc", "contradictions are refused with what is right"),
    "a lost node": (_NODES, "test_losing_another_node_stops_node_0"),
    "a node that stops before the first start": (_NODES, "test_a_node_that_stops_while_waiting_makes_room_for_another"),
    "a signal while workers are stopped for a restart": (_LIFE, "test_a_signal_while_workers_are_stopped_for_a_restart_ends_the_job"),
    "`--node-rank` twice or out of range, different `--nnodes`": (_NODES, "test_a_node_rank_given_twice_is_refused"),
    "exit barrier": (_NODES, "test_the_node_that_serves_the_store_waits_for_the_others"),
    "`-t`": ("tests/system/test_launcher_logs.py", "test_tee_prefixes_whole_lines_and_keeps_the_files_as_they_were"),
    "stderr": (_LIFE, "test_the_first_failure_stops_the_others_and_is_reported"),
    "`TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT`": (
        "tests/unit/launcher/policies_test.cc", "a worker that does not even die of SIGKILL does not hold the launcher for ever"),
    "`--monitor-interval`": ("tests/unit/launcher/options_test.cc", "options without effect are accepted"),
    "logs of a generation whose nodes changed": (_ELASTIC, "test_min_nodes_start_after_the_last_call_and_a_latecomer_grows_the_world"),
    "c10d": (_ELASTIC, "test_two_nodes_of_different_size_gather_at_the_agent_of_the_endpoint"),
    "c10d: who is rank 0": (_ELASTIC, "test_two_nodes_of_different_size_gather_at_the_agent_of_the_endpoint"),
    "c10d: a node lost, MIN are left": (_FAULTS, "test_a_killed_agent_is_told_at_once_and_the_rest_goes_on"),
    "two programs without a run id at one endpoint": (_JOINING, "test_jobs_without_a_name_that_meet_are_told_apart_by_their_programs"),
    "c10d: port 0 in the endpoint, several nodes": (_JOINING, "test_the_first_node_takes_any_port_and_tells_the_others"),
    "c10d: a late agent of a job that is over": (_JOINING, "test_an_agent_that_comes_after_its_job_hears_of_it_and_a_new_job_of_the_name_runs"),
    "c10d: `MASTER_ADDR`": (_ELASTIC, "test_of_the_first_node_s_addresses_the_one_that_answers_is_used"),
    "c10d: nodes beyond MAX": (_FAULTS, "test_a_second_job_by_the_same_name_that_never_ran_is_no_success"),
    "c10d: signal to one node": (_FAULTS, "test_a_signalled_node_leaves_where_the_rest_suffices"),
}


def rows(path, heading):
    """The first cells of the table under a heading."""
    section = (ROOT / path).read_text().split(heading + "\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line.split(" | ")[0][2:].strip() for line in lines[1:] if not line.startswith("| ---")]


def topics():
    return rows("launcher/torchrun.md", "## Where muster differs from torchrun, and why")


def explained(topic, aspect, values):
    one_sided = None in values and topic in ONLY_ONE_HAS and re.fullmatch(ONLY_ONE_HAS[topic], aspect)
    return bool(one_sided or re.fullmatch(EXPLAINS[topic], aspect))


def check(different, shown):
    """What no shown row explains is a mistake, and so is a row that explains nothing. `different`: aspect -> both values."""
    left = {aspect: values for aspect, values in different.items()
            if not any(explained(topic, aspect, values) for topic in shown)
            and not (values[0] is None and any(re.fullmatch(pattern, aspect) for pattern in ADDS.values()))}
    assert not left, f"differs and should not, torchrun's first: {json.dumps(left, indent=1)}"
    idle = [topic for topic in shown if not any(explained(topic, aspect, values) for aspect, values in different.items())]
    assert not idle, f"these rows of launcher/torchrun.md are not seen: {idle}; different is {sorted(different)}"
