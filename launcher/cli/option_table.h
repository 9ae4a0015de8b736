// SPDX-License-Identifier: Apache-2.0
// The one table of muster's options: spelling, environment variable, kind of value, default, meaning. The
// parser, --help and the tests read it. Dashes and underscores inside a name are the same. Source:
// torch/distributed/run.py (get_args_parser) of PyTorch 2.14.
#pragma once

#include <array>
#include <string_view>

namespace muster::launcher {

enum class Takes {
  kNothing,
  kText,
  kOptional,  // with "=" only; without, the first word of `metavar`
};

enum class Support {
  kFull,
  kNoEffect,  // accepted so that torchrun's command lines work; changes nothing here
  kRefused,   // torchrun has it, muster does not: `meaning` says what to use instead
};

struct OptionRow {
  std::string_view name;  // without dashes in front
  char letter;            // 0: none
  std::string_view env;   // empty: none. Command line beats environment beats default
  Takes takes;
  std::string_view metavar;
  std::string_view default_text;
  Support support;
  std::string_view meaning;
  // Unknown to torchrun: gives way where a shortened name could also mean one of its options.
  bool own = false;
};

inline constexpr std::array kOptionTable = {
    OptionRow{"nnodes", 0, "PET_NNODES", Takes::kText, "N|MIN:MAX", "1; Slurm's", Support::kFull,
              "number of nodes; a range needs --rdzv-backend=c10d"},
    OptionRow{"nproc-per-node", 0, "PET_NPROC_PER_NODE", Takes::kText, "N|auto|gpu|cpu",
              "one per GPU, else 1", Support::kFull, "workers on this node"},
    OptionRow{"node-rank", 0, "PET_NODE_RANK", Takes::kText, "N", "0; Slurm's; with c10d none",
              Support::kFull, "this node's rank, 0 to nnodes-1; with c10d its place among the nodes"},
    OptionRow{"master-addr", 0, "PET_MASTER_ADDR", Takes::kText, "HOST", "127.0.0.1", Support::kFull,
              "address of node 0, which serves the store"},
    OptionRow{"master-port", 0, "PET_MASTER_PORT", Takes::kText, "PORT", "29500", Support::kFull,
              "port of the store on node 0"},
    OptionRow{"standalone", 0, "PET_STANDALONE", Takes::kNothing, "", "", Support::kFull,
              "one node, store on a port of the kernel's choice; the default for one node"},
    OptionRow{"max-restarts", 0, "PET_MAX_RESTARTS", Takes::kText, "N", "0", Support::kFull,
              "how often all workers of the job are started again after a failure"},
    OptionRow{"restart-backoff", 0, "PET_RESTART_BACKOFF", Takes::kText, "MIN:MAX", "0", Support::kFull,
              "seconds before a restart: MIN before the first, doubled up to MAX; alike on all nodes", true},
    OptionRow{"no-restart-on", 0, "PET_NO_RESTART_ON", Takes::kText, "CODES", "none", Support::kFull,
              "failures that end the job: those of --restart-on, and 2 or 64-78 for exit:2, exit:64-78",
              true},
    OptionRow{"restart-on", 0, "PET_RESTART_ON", Takes::kText, "FAILURES", "all", Support::kFull,
              "only these are tried again: hang, node, oom, signal:SIGBUS, exit:75, exit:64-78 and the "
              "classes below; alike on all nodes",
              true},
    OptionRow{"max-restarts-without-progress", 0, "PET_MAX_RESTARTS_WITHOUT_PROGRESS", Takes::kText, "N",
              "no limit", Support::kFull,
              "the job ends with 86 when so many restarts in a row reached no further step", true},
    OptionRow{"exhausted-exit-code", 0, "PET_EXHAUSTED_EXIT_CODE", Takes::kText, "CODE", "the worker's",
              Support::kFull, "what muster ends with when a worker fails and no restart is left", true},
    OptionRow{"join-at", 0, "PET_JOIN_AT", Takes::kText, "now|safe-point[:S]", "now", Support::kFull,
              "with c10d and MIN:MAX: a node that comes later waits until the job says that a checkpoint is "
              "written, or S seconds",
              true},
    OptionRow{"spares", 0, "PET_SPARES", Takes::kText, "K", "0", Support::kFull,
              "with c10d: so many nodes more wait, and take the place of one that is lost", true},
    OptionRow{"module", 'm', "PET_MODULE", Takes::kNothing, "", "", Support::kFull,
              "the program is a Python module, as in python -m"},
    OptionRow{"no-python", 0, "PET_NO_PYTHON", Takes::kNothing, "", "", Support::kFull,
              "execute the program directly, whatever its name"},
    OptionRow{"run-path", 0, "PET_RUN_PATH", Takes::kNothing, "", "", Support::kFull,
              "run the script with Python's runpy, which records its exception in the error file"},
    OptionRow{"no-use-env", 0, "PET_NO_USE_ENV", Takes::kNothing, "", "", Support::kFull,
              "pass --local-rank=N to the program as its first argument, as torch.distributed.launch did",
              true},
    OptionRow{"local-rank-arg", 0, "PET_LOCAL_RANK_ARG", Takes::kText, "NAME", "local-rank", Support::kFull,
              "likewise, under this name; PyTorch before 2.0 had local_rank", true},
    OptionRow{"use-env", 0, "", Takes::kNothing, "", "", Support::kFull,
              "the default: LOCAL_RANK in the environment only; of torch.distributed.launch", true},
    OptionRow{"log-dir", 0, "PET_LOG_DIR", Takes::kText, "DIR", "a temporary one", Support::kFull,
              "where -r and -t write"},
    OptionRow{"redirects", 'r', "PET_REDIRECTS", Takes::kText, "STD", "0", Support::kFull,
              "write output to files: 0 none, 1 stdout, 2 stderr, 3 both; or RANK:STD,RANK:STD"},
    OptionRow{"tee", 't', "PET_TEE", Takes::kText, "STD", "0", Support::kFull,
              "as -r, and also show it here with a prefix per line"},
    OptionRow{"local-ranks-filter", 0, "PET_LOCAL_RANKS_FILTER", Takes::kText, "N,N", "all", Support::kFull,
              "show the output of these local ranks only"},
    OptionRow{
        "log-line-prefix-template", 0, "PET_LOG_LINE_PREFIX_TEMPLATE", Takes::kText, "TEXT",
        "[${role_name}${local_rank}]:", Support::kFull,
        "prefix of lines; knows role_name, local_rank, rank, hostname, host, generation, restart, time"},
    OptionRow{"ranks-filter", 0, "PET_RANKS_FILTER", Takes::kText, "N,N-M", "all", Support::kFull,
              "show the output of these ranks of the world only", true},
    OptionRow{"log-max-size", 0, "PET_LOG_MAX_SIZE", Takes::kText, "BYTES", "no limit", Support::kFull,
              "a log file that is larger becomes FILE.1, at a line's end; K, M and G multiply by 1024", true},
    OptionRow{"log-keep", 0, "PET_LOG_KEEP", Takes::kText, "N", "5", Support::kFull,
              "with --log-max-size: how many older files stay, FILE.1 being the youngest", true},
    OptionRow{"view", 0, "PET_VIEW", Takes::kText, "all|rank0|fold", "all", Support::kFull,
              "rank0: others from their first error on; fold: equal lines once, as [x8]", true},
    OptionRow{"duplicate-stdout-filters", 0, "PET_DUPLICATE_STDOUT_FILTERS", Takes::kText, "TEXT,TEXT", "",
              Support::kFull,
              "with -t 1: lines with one of these texts also go to filtered_stdout.log; ',,' is a comma"},
    OptionRow{"duplicate-stderr-filters", 0, "PET_DUPLICATE_STDERR_FILTERS", Takes::kText, "TEXT,TEXT", "",
              Support::kFull, "likewise with -t 2, to filtered_stderr.log"},
    OptionRow{"role", 0, "PET_ROLE", Takes::kText, "NAME", "default", Support::kFull,
              "role of this node's workers"},
    OptionRow{"rdzv-id", 0, "PET_RDZV_ID", Takes::kText, "ID", "none, or a UUID with one node",
              Support::kFull, "the job's id, told to the workers"},
    OptionRow{"rdzv-backend", 0, "PET_RDZV_BACKEND", Takes::kText, "NAME", "static; under Slurm c10d",
              Support::kFull,
              "static; c10d or muster: a coordinator at the endpoint gathers nodes; etcd: they elect one"},
    OptionRow{"rdzv-endpoint", 0, "PET_RDZV_ENDPOINT", Takes::kText, "HOST[:PORT]", "", Support::kFull,
              "where the coordinator is: a musterd, else the agent of that machine runs it (port 29400; with "
              "backend muster 29500); static: --master-addr and --master-port; etcd: its members (2379), "
              "HOST[:PORT],HOST[:PORT]"},
    OptionRow{"rdzv-conf", 0, "PET_RDZV_CONF", Takes::kText, "K=V,K=V", "", Support::kFull,
              "join_timeout=SECONDS: how long nodes wait for each other (600; static 900); more keys in "
              "launcher/README.md"},
    OptionRow{"signals-to-handle", 0, "PET_SIGNALS_TO_HANDLE", Takes::kText, "NAMES",
              "SIGTERM,SIGINT,SIGHUP,SIGQUIT", Support::kFull,
              "signals passed on to the workers, which then end"},
    OptionRow{"shutdown-timeout", 0, "PET_SHUTDOWN_TIMEOUT", Takes::kText, "SECONDS", "30; under Slurm 25",
              Support::kFull, "grace between the stop signal and SIGKILL; SIGABRT comes in its last tenth"},
    OptionRow{
        "cgroup", 0, "PET_CGROUP", Takes::kText, "auto|off|required", "auto", Support::kFull,
        "a control group for each worker, by which all that it started ends with it; auto: where delegated",
        true},
    OptionRow{"hang-timeout", 0, "PET_HANG_TIMEOUT", Takes::kText, "SECONDS|auto|off", "auto", Support::kFull,
              "how long a worker may give no sign of life; auto: only those that tell of their progress; "
              "SECONDS:START for the first steps too",
              true},
    OptionRow{"on-hang", 0, "PET_ON_HANG", Takes::kText, "report|restart|stop", "report", Support::kFull,
              "then say what all workers are doing, and start again or stop", true},
    OptionRow{"heartbeat-file", 0, "PET_HEARTBEAT_FILE", Takes::kText, "TEMPLATE", "none", Support::kFull,
              "file that a worker touches as its sign of life; knows {rank} and {local_rank}", true},
    OptionRow{"virtual-local-rank", 0, "PET_VIRTUAL_LOCAL_RANK", Takes::kNothing, "", "", Support::kFull,
              "every worker sees LOCAL_RANK=0 and one GPU"},
    OptionRow{"gpus", 0, "PET_GPUS", Takes::kText, "N,N-N|UUID", "all", Support::kFull,
              "the GPUs of this node's workers, as nvidia-smi counts them; also sets --nproc-per-node", true},
    OptionRow{"oversubscribe", 0, "PET_OVERSUBSCRIBE", Takes::kNothing, "", "", Support::kFull,
              "more workers than GPUs of --gpus, or than cores to bind to, share them", true},
    OptionRow{"bind", 0, "PET_BIND", Takes::kText, "none|numa|core|socket", "none", Support::kFull,
              "bind each worker to the CPUs near its GPU, or to a share of all, before it is executed", true},
    OptionRow{"numa-binding", 0, "", Takes::kText, "MODE", "", Support::kFull,
              "the same in torchrun's words: node, socket, exclusive, core-complex"},
    OptionRow{"report-bindings", 0, "PET_REPORT_BINDINGS", Takes::kNothing, "", "", Support::kFull,
              "say on stderr where each worker goes: GPU, UUID, NUMA node, CPUs, memory, network adapter",
              true},
    OptionRow{"dry-run", 0, "PET_DRY_RUN", Takes::kOptional, "all|local", "", Support::kFull,
              "show where each worker of all nodes would go and what it would be told; start nothing; local: "
              "of this node, without a word to the others",
              true},
    OptionRow{"preflight", 0, "PET_PREFLIGHT", Takes::kText, "quick|full|off", "off", Support::kFull,
              "check driver, GPUs, disks and limits first; an unfit node says why and stays out", true},
    OptionRow{
        "doctor", 0, "", Takes::kNothing, "", "", Support::kFull,
        "instead of the program: each node tries to reach each other one, and the first prints who does",
        true},
    OptionRow{"local-addr", 0, "PET_LOCAL_ADDR", Takes::kText, "HOST", "the host's name", Support::kFull,
              "this node's name in messages and reports; an address is also the only one offered to "
              "other nodes, and listened at"},
    OptionRow{"iface", 0, "PET_IFACE", Takes::kText, "NAME", "all", Support::kFull,
              "offer the addresses of this network interface only, and listen there only", true},
    OptionRow{"port-file", 0, "PET_PORT_FILE", Takes::kText, "FILE", "none", Support::kFull,
              "write there, as HOST:PORT, where this agent's coordinator listens", true},
    OptionRow{
        "host-map", 0, "PET_HOST_MAP", Takes::kText, "FILE|NAME=HOST,..", "", Support::kFull,
        "names that the job is given or Slurm has, and what is to be looked for instead; *=*i adds an i "
        "to all",
        true},
    OptionRow{"metrics-addr", 0, "PET_METRICS_ADDR", Takes::kText, "HOST:PORT", "off", Support::kFull,
              "answer GET /healthz and /metrics (Prometheus) there; PORT alone: on 127.0.0.1; port 0: any, "
              "which is said",
              true},
    OptionRow{"events", 0, "PET_EVENTS", Takes::kText, "FILE", "none", Support::kFull,
              "add a line of JSON for whatever happens to the job; knows {host}", true},
    OptionRow{"timeline", 0, "PET_TIMELINE", Takes::kNothing, "", "", Support::kFull,
              "say how long each phase of the start took, and which rank it took longest", true},
    OptionRow{"detach", 0, "", Takes::kNothing, "", "", Support::kFull,
              "go on without this terminal; prints the job's name, for musterctl", true},
    OptionRow{"job-name", 0, "PET_JOB_NAME", Takes::kText, "NAME", "from the program's", Support::kFull,
              "with --detach: what musterctl is to call it", true},
    OptionRow{"secret-file", 0, "PET_SECRET_FILE", Takes::kText, "FILE", "MUSTER_SECRET", Support::kFull,
              "file with the job's secret, readable by its owner alone", true},
    OptionRow{"exec", 0, "PET_EXEC", Takes::kNothing, "", "", Support::kFull,
              "in a Slurm task (srun -n N): become the program, as the worker with the task's rank", true},
    OptionRow{"srun", 0, "PET_SRUN", Takes::kNothing, "", "", Support::kFull,
              "in a batch script or in salloc: start an agent on each node of the Slurm job, by srun", true},
    OptionRow{"no-slurm", 0, "PET_NO_SLURM", Takes::kNothing, "", "", Support::kFull,
              "take nothing from Slurm's variables: nodes, ranks and the endpoint are given by hand", true},
    OptionRow{"tls-ca", 0, "PET_TLS_CA", Takes::kText, "FILE", "no TLS", Support::kFull,
              "TLS with a coordinator whose certificate is signed by these (PEM)", true},
    OptionRow{"tls-cert", 0, "PET_TLS_CERT", Takes::kText, "FILE", "", Support::kFull,
              "this node's certificate (PEM): of a coordinator it runs, and for one that asks", true},
    OptionRow{"tls-key", 0, "PET_TLS_KEY", Takes::kText, "FILE", "", Support::kFull,
              "its key, readable by its owner alone", true},
    OptionRow{"store-proxy", 0, "PET_STORE_PROXY", Takes::kNothing, "", "", Support::kFull,
              "workers reach their store through this agent and the coordinator, over its one "
              "connection; the default with a secret or TLS",
              true},
    OptionRow{"no-store-proxy", 0, "PET_NO_STORE_PROXY", Takes::kNothing, "", "", Support::kFull,
              "workers reach their store at the first node, by a port that is open to everybody", true},
    OptionRow{"monitor-interval", 0, "PET_MONITOR_INTERVAL", Takes::kText, "SECONDS", "0.1",
              Support::kNoEffect, "exits are learnt at once, nothing is polled"},
    OptionRow{"start-method", 0, "PET_START_METHOD", Takes::kText, "spawn|fork|forkserver", "spawn",
              Support::kNoEffect, "workers are always executed anew"},
    OptionRow{"event-log-handler", 0, "PET_EVENT_LOG_HANDLER", Takes::kText, "NAME", "null",
              Support::kNoEffect, "no such stream is written; --events=FILE"},
    OptionRow{"logs-specs", 0, "", Takes::kText, "NAME", "", Support::kRefused,
              "names a Python plug-in; use --log-dir, -r and -t"},
    OptionRow{"print-completion", 0, "", Takes::kText, "bash|zsh|tcsh", "", Support::kFull,
              "print what teaches this shell to complete muster's options, and exit"},
    OptionRow{"help", 'h', "", Takes::kNothing, "", "", Support::kFull, "show this text and exit"},
    OptionRow{"version", 0, "", Takes::kNothing, "", "", Support::kFull, "show the version and exit", true},
};

}  // namespace muster::launcher
