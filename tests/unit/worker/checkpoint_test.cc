// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <boost/crc.hpp>

#include <muster/checkpoint.h>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/recording_device.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_group.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/core/atomic_file.h"
#include "worker_runtime/core/crc32c.h"
#include "worker_runtime/device/device.h"

using namespace muster;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

using Manager = std::unique_ptr<CheckpointManager>;

/// A model with an optimizer that has made `steps` steps.
struct Trained {
  nn::Model model = nn::garment_classifier();
  std::unique_ptr<Optimizer> optimizer;
  TrainingState state;
  std::unique_ptr<ProcessGroup> alone = make_single_group();

  explicit Trained(std::uint64_t seed, int steps = 1, bool adamw = false,
                   const Compute& compute = *make_compute(DeviceType::kCpu)) {
    Generator generator(seed);
    model.initialize(generator);
    // Thrown, not required: it is made on threads, too.
    if (const auto allocated = model.allocate(compute); !allocated)
      throw std::runtime_error(allocated.error().message);
    if (adamw) {
      optimizer = *AdamW::create(model, {});
      if (!optimizer->use_grad_scaler({.init_scale = 8, .growth_interval = 2}))
        throw std::runtime_error("use_grad_scaler");
    } else {
      optimizer = *Sgd::create(model, {});
    }
    for (int step = 0; step < steps; ++step) {
      for (const nn::Parameter& parameter : model.parameters())
        generator.uniform(std::span(model.grads() + parameter.offset, parameter.count), -1, 1);
      optimizer->step();
    }
    model.manual_seed(~seed, 9);
    state = {.epoch = 3,
             .step = steps,
             .seed = seed + (1ULL << 63),
             .epoch_samples = 16,
             .epoch_loss_sum = 0.1 + 0.2,
             .schedule_step = 7,
             .best_metric = 0.2 + 0.7,
             .best_epoch = 2,
             .world_size = 2,
             .batch_size = 4};
  }
  [[nodiscard]] Result<Manager> manager(const std::string& path, ProcessGroup& group,
                                        const CheckpointOptions& options = {.model = "garment"}) {
    return CheckpointManager::create(path, model, *optimizer, group, options);
  }
  [[nodiscard]] Manager manager(const std::string& path,
                                const CheckpointOptions& options = {.model = "garment"}) {
    auto made = manager(path, *alone, options);
    REQUIRE_OK(made);
    return *std::move(made);
  }
  /// Of what another may be writing.
  [[nodiscard]] Manager reader(const std::string& path) {
    return manager(path, {.model = "garment", .read_only = true});
  }
  /// As step `step` of its own manager.
  void save(CheckpointManager& manager, std::int64_t step, bool is_best = false) {
    state.step = step;
    REQUIRE_OK(manager.save(state, is_best));
    REQUIRE_OK(manager.wait());
  }
  [[nodiscard]] bool operator==(const Trained& other) const {
    return model.read_params() == other.model.read_params() &&
           model.read_buffers() == other.model.read_buffers() &&
           optimizer->read_state() == other.optimizer->read_state() &&
           model.read_random_state().seed == other.model.read_random_state().seed &&
           model.read_random_state().step == other.model.read_random_state().step;
  }
};

std::string contents(const fs::path& path) {
  auto bytes = read_file(path);
  REQUIRE_OK(bytes);
  return *std::move(bytes);
}

void overwrite(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::set<std::string> names_in(const fs::path& path) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
  return names;
}

/// Runs `body` in a child that stops at every entry to and exit from the kernel, where at_stop(child) says
/// whether it goes on or is killed. True: it came to its end.
template <class Body, class AtStop>
bool ends_traced(const Body& body, AtStop at_stop) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    ::_exit(body() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
  while (WIFSTOPPED(status)) {
    const bool goes_on = at_stop(child);
    if (!goes_on) ::kill(child, SIGKILL);
    REQUIRE((!goes_on || ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0));
    REQUIRE(::waitpid(child, &status, 0) == child);
  }
  if (WIFEXITED(status)) REQUIRE(WEXITSTATUS(status) == 0);
  return WIFEXITED(status);
}

/// The calls of `body` that bring a file or a directory to the disk or rename it, in their order; paths as
/// seen from `base`, without the process' number. What is written to after its fsync is not on the disk.
template <class Body>
std::vector<std::string> disk_calls(const std::string& base, const Body& body) {
  std::vector<std::string> calls;
  __ptrace_syscall_info entry{}, stop{};
  const bool ended = ends_traced(body, [&](pid_t child) {
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof stop, &stop) > 0);
    if (stop.op == PTRACE_SYSCALL_INFO_ENTRY) entry = stop;
    if (stop.op != PTRACE_SYSCALL_INFO_EXIT || stop.exit.is_error != 0) return true;
    const std::string process = "/proc/" + std::to_string(child), number = "-" + std::to_string(child);
    const auto seen = [&](const fs::path& path) {
      std::string name = path.lexically_relative(base);
      if (const auto at = name.find(number); at != std::string::npos) name.erase(at, number.size());
      return name;
    };
    const auto& args = entry.entry.args;
    const auto file = [&] { return seen(fs::read_symlink(process + "/fd/" + std::to_string(args[0]))); };
    const auto text = [&](std::uint64_t address) {
      std::ifstream memory(process + "/mem", std::ios::binary);
      std::string out;
      std::getline(memory.seekg(static_cast<std::streamoff>(address)), out, '\0');
      return seen(out);
    };
    switch (entry.entry.nr) {
      case SYS_fsync:
      case SYS_fdatasync:
        calls.push_back("fsync " + file());
        break;
      case SYS_write:
      case SYS_pwrite64:
        std::erase(calls, "fsync " + file());
        break;
#ifdef SYS_rename
      case SYS_rename:
        calls.push_back("rename " + text(args[0]) + " to " + text(args[1]));
        break;
#endif
      case SYS_renameat:
      case SYS_renameat2:
        calls.push_back("rename " + text(args[1]) + " to " + text(args[3]));
        break;
      default:
        break;
    }
    return true;
  });
  REQUIRE(ended);
  return calls;
}

}  // namespace

TEST_CASE("a checkpoint is three files, and restores every bit") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  const bool adamw = GENERATE(false, true);
  Trained saved(1, 3, adamw);
  saved.save(*saved.manager(run), 3);
  REQUIRE(names_in(run) == std::set<std::string>{"LATEST", "step-00000003"});
  REQUIRE(names_in(run + "/step-00000003") ==
          std::set<std::string>{"model.safetensors", "optim.safetensors", "state.json"});
  REQUIRE(contents(run + "/LATEST") == "step-00000003\n");
  Trained mine(9, 0, adamw);
  const auto manager = mine.manager(run);
  REQUIRE((*manager->latest() == run + "/step-00000003"));
  const auto state = manager->restore();
  REQUIRE_OK(state);
  REQUIRE(*state == saved.state);
  REQUIRE(mine == saved);
}

TEST_CASE("every rank continues from what rank 0 reads, whatever the world it was written by") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1, 2);
  saved.save(*saved.manager(run), 2);
  for (const int world : {1, 2, 4}) {
    const auto errors = test::run_ranks(world, [&](test::ThreadGroup& group) -> std::string {
      Trained mine(9, 0);
      // Only rank 0 sees the files.
      auto manager = mine.manager(group.rank() == 0 ? run : "/nonexistent", group);
      if (!manager) return manager.error().message;
      const auto state = (*manager)->restore();
      if (!state) return state.error().message;
      if (*state != saved.state) return "another state";
      return mine == saved ? "" : "other values";
    });
    REQUIRE(errors == std::vector<std::string>(static_cast<std::size_t>(world)));
  }
}

TEST_CASE("the place in a schedule moves with the size of the world, the place in the epoch does not") {
  TrainingState state{
      .step = 100, .epoch_samples = 800, .schedule_step = 100, .world_size = 2, .batch_size = 4};
  state.continue_with(4, 4);
  REQUIRE(state ==
          TrainingState{
              .step = 100, .epoch_samples = 800, .schedule_step = 50, .world_size = 4, .batch_size = 4});
  state.continue_with(1, 8);
  REQUIRE(state.schedule_step == 100);
}

TEST_CASE("a directory without a checkpoint is told from one that cannot be read") {
  const test::TemporaryDirectory dir;
  const auto errors = test::run_ranks(2, [&](test::ThreadGroup& group) -> std::string {
    Trained mine(9, 1);
    const Trained before(9, 1);
    auto manager = mine.manager(dir.path(), group);
    if (!manager) return manager.error().message;
    const auto nothing = (*manager)->restore();
    if (!nothing || *nothing) return "restored from nothing";
    if (group.rank() == 0) overwrite(dir.path() + "/LATEST", "step-00000003\n");
    const auto state = (*manager)->restore();
    return !(mine == before) ? "changed" : state ? "restored from nothing" : state.error().message;
  });
  const std::string gone = dir.path() + "/step-00000003/state.json: No such file or directory (ENOENT)";
  REQUIRE(errors[0] == "checkpoint step-00000003 of " + dir.path() + ": open " + gone);
  REQUIRE(errors[1] == "checkpoints " + dir.path() + ": rank 0 could not load one");
}

TEST_CASE("a checkpoint of another model or optimizer is refused by name and shape, and nothing changes") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1);
  saved.save(*saved.manager(run), 1);
  const std::string who = "checkpoint step-00000001 of " + run + ": ";
  const auto refused = [&](Trained& mine, const std::string& name) {
    const auto state = mine.manager(run, {.model = name})->restore();
    REQUIRE_FALSE(state);
    REQUIRE(state.error().code == ErrorCode::kMismatch);
    return state.error().message;
  };
  Trained other(9, 0);
  other.model = nn::mlp();
  REQUIRE_OK(other.model.allocate(*make_compute(DeviceType::kCpu)));
  other.optimizer = *Sgd::create(other.model, {});
  REQUIRE(refused(other, "mlp") ==
          who +
              "it is of model 'garment', this run trains 'mlp': tensor 'fc1.weight' is F32 120x256, the "
              "model's is F32 512x784; these are the weights of another model");
  REQUIRE_THAT(refused(other, "garment"), Contains("'fc1.weight' is F32 120x256"));
  Trained mine(9, 1);
  REQUIRE(refused(mine, "garment-2") ==
          who + "it is of model 'garment', this run trains 'garment-2': the tensors are alike");
  REQUIRE(mine == Trained(9, 1));
  Trained adamw(9, 1, true);
  REQUIRE(refused(adamw, "garment") ==
          who + "it is of optimizer SGD, this run's is AdamW; continue with the one that wrote it");
}

TEST_CASE("a checkpoint with any damaged byte, or cut anywhere, is passed over for the one before") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  const std::vector<std::string> names = {"model.safetensors", "optim.safetensors"};
  Trained first(1);
  const auto writer = first.manager(run);
  first.save(*writer, 1);
  first.save(*writer, 2);
  fs::copy(run + "/step-00000002", dir.path() + "/whole");
  for (const char* const name : {"state.json", "model.safetensors", "optim.safetensors"}) {
    fs::remove_all(run + "/step-00000002");
    fs::copy(dir.path() + "/whole", run + "/step-00000002");
    REQUIRE_OK(read_step(run, 2, names));
    const std::string path = run + "/step-00000002/" + name;
    const std::string whole = contents(path);
    const std::size_t stride = whole.size() < 5000 ? 3 : 9973;
    for (std::size_t at = 0; at + 1 < whole.size(); at += stride) {
      INFO(name << " byte " << at);
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x04);
      for (const std::string& bytes : {damaged, whole.substr(0, at)}) {
        overwrite(path, bytes);
        const auto read = read_step(run, 2, names);
        REQUIRE_FALSE(read);
        REQUIRE(read.error().message.find('\n') == std::string::npos);
      }
    }
    Trained mine(9, 0);
    const auto state = mine.reader(run)->restore();
    REQUIRE_OK(state);
    REQUIRE((*state)->step == 1);
    REQUIRE(mine == first);
  }
  overwrite(run + "/step-00000001/state.json", "{}");
  Trained mine(9, 0);
  REQUIRE(mine.reader(run)->restore().error().code == ErrorCode::kCorrupt);
}

TEST_CASE("LATEST says where to go on, and what it cannot name it does not") {
  const test::TemporaryDirectory dir;
  for (const int step : {1, 5, 9}) fs::create_directory(dir.path() + "/" + step_name(step));
  for (const char* const other : {"step-3", "step-00000x03", "other"})
    fs::create_directory(dir.path() + "/" + other);
  REQUIRE(restorable_steps(dir.path()) == std::vector<std::int64_t>{9, 5, 1});
  overwrite(dir.path() + "/LATEST", "step-00000005\n");
  REQUIRE(restorable_steps(dir.path()) == std::vector<std::int64_t>{5, 1, 9});
  for (const char* const name : {"", "\n", "step-00000001", "../step-00000001\n", "step-1\n",
                                 "step--0000001\n", "step-99999999999999999999\n"}) {
    overwrite(dir.path() + "/LATEST", name);
    REQUIRE(restorable_steps(dir.path()) == std::vector<std::int64_t>{9, 5, 1});
  }
  overwrite(dir.path() + "/LATEST", "step-123456789012\n");
  REQUIRE(restorable_steps(dir.path()) == std::vector<std::int64_t>{123456789012, 9, 5, 1});
}

TEST_CASE("the last ones are kept, and the best one") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1);
  const auto manager = saved.manager(run, {.model = "garment", .keep = 2});
  for (const int step : {1, 2, 3, 4, 5}) saved.save(*manager, step, step == 2);
  REQUIRE(names_in(run) ==
          std::set<std::string>{"BEST", "LATEST", "step-00000002", "step-00000004", "step-00000005"});
  REQUIRE(contents(run + "/BEST") == "step-00000002\n");
  // The run goes back: what lies above stays until it is there again, and the same step is replaced.
  overwrite(run + "/LATEST", "step-00000002\n");
  REQUIRE_OK(manager->restore());
  saved.save(*manager, 3, true);
  saved.state.best_metric = 0.5;
  saved.save(*manager, 4);
  REQUIRE(names_in(run) ==
          std::set<std::string>{"BEST", "LATEST", "step-00000003", "step-00000004", "step-00000005"});
  Trained mine(9, 0);
  REQUIRE((*mine.reader(run)->restore())->best_metric == 0.5);
}

TEST_CASE("a run that did not begin with what a directory has does not write there") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1);
  saved.save(*saved.manager(run), 1);
  REQUIRE_THAT(saved.manager(run)->save(saved.state).error().message, Contains("of another run"));
  REQUIRE_THAT(saved.manager(run, {.read_only = true})->save(saved.state).error().message,
               Contains("only read"));
  const std::string none = dir.path() + "/none";
  REQUIRE_FALSE(*saved.manager(none, {.read_only = true})->restore());
  REQUIRE(names_in(dir.path()) == std::set<std::string>{"run"});
  REQUIRE_THAT(saved.manager(none, *saved.alone, {.keep = 0}).error().message, Contains("at least 1"));
  saved.state.best_metric = std::numeric_limits<double>::quiet_NaN();
  REQUIRE_THAT(saved.manager(none)->save(saved.state).error().message, Contains("not finite"));
}

TEST_CASE("a directory has one writer at a time, and nothing is removed there but what writers leave") {
  const test::TemporaryDirectory dir;
  Trained saved(1);
  fs::create_directory(dir.path() + "/notes.tmp-old");
  for (const char* const name : {".tmp-123", "LATEST.tmp-7", "BEST.tmp-7", ".tmp-", "LATEST.tmp-7.txt"})
    overwrite(dir.path() + "/" + name, "");
  const auto writer = saved.manager(dir.path());
  REQUIRE(names_in(dir.path()) == std::set<std::string>{"notes.tmp-old", ".tmp-", "LATEST.tmp-7.txt"});
  overwrite(dir.path() + "/.tmp-123", "");
  const auto second = saved.manager(dir.path(), *saved.alone);
  REQUIRE_THAT(second.error().message, Contains("another program writes its checkpoints to " + dir.path()));
  REQUIRE(fs::exists(dir.path() + "/.tmp-123"));
}

TEST_CASE("where the memory of a copy was refused the next save asks for it again") {
  struct RefusingDevice final : testing::RecordingDevice {
    using RecordingDevice::RecordingDevice;
    bool refuses = true;
    Result<std::shared_ptr<void>> allocate_host(std::size_t size_bytes) override {
      if (std::exchange(refuses, false)) return fail(ErrorCode::kExhausted, "none left");
      return Device::allocate_host(size_bytes);
    }
  };
  const test::TemporaryDirectory dir;
  Trained saved(
      1, 1, false,
      std::make_shared<RefusingDevice>(*make_compute(DeviceType::kCpu), std::make_shared<testing::Tape>()));
  const auto manager = saved.manager(dir.path());
  saved.state.step = 1;
  REQUIRE(manager->save(saved.state).error().message == "none left");
  REQUIRE(names_in(dir.path()).empty());
  saved.save(*manager, 2);
  Trained mine(9, 0);
  REQUIRE_OK(mine.reader(dir.path())->restore());
  REQUIRE(mine == saved);
}

TEST_CASE("a model that is no longer finite is not written over one that is") {
  const test::TemporaryDirectory dir;
  Trained saved(1);
  const auto manager = saved.manager(dir.path());
  saved.save(*manager, 1);
  const auto before = names_in(dir.path());
  saved.model.params()[saved.model.arena_elements() - 1] = std::numeric_limits<float>::infinity();
  saved.state.step = 2;
  REQUIRE_OK(manager->save(saved.state, true));
  REQUIRE_THAT(manager->wait().error().message, Contains("checkpoint step-00000002 of " + dir.path()) &&
                                                    Contains("a parameter is not finite"));
  REQUIRE(names_in(dir.path()) == before);
}

TEST_CASE("the first evaluation is the best so far, whatever it is, unless it is not a number") {
  TrainingState state;
  REQUIRE_FALSE(state.end_epoch(std::numeric_limits<double>::quiet_NaN()));
  REQUIRE(state.end_epoch(-0.5));
  REQUIRE_FALSE(state.end_epoch(-0.75));
  REQUIRE(state.best_epoch == 2);
}

TEST_CASE("a scale that no GradScaler had is not taken for one") {
  const test::TemporaryDirectory dir;
  Trained saved(1);
  saved.save(*saved.manager(dir.path()), 1);
  Trained mine(9, 0);
  REQUIRE_OK(mine.optimizer->use_grad_scaler({.init_scale = 4096}));
  REQUIRE_OK(mine.reader(dir.path())->restore());
  REQUIRE(mine.optimizer->read_state().loss_scale == 4096);
}

TEST_CASE("with logical shards a step has as many samples in any world") {
  const test::TemporaryDirectory dir;
  Trained saved(1);  // of two ranks, after 7 steps of its schedule
  saved.save(*saved.manager(dir.path()), 1);
  for (const bool same : {false, true}) {
    Trained mine(9, 0);
    const auto resumed = resume(mine.model, *mine.optimizer, *mine.alone,
                                {.checkpoint = dir.path(),
                                 .resume = dir.path() + "//",
                                 .model = "garment",
                                 .batch_size = 4,
                                 .logical_shards = same ? 2 : 0});
    REQUIRE_OK(resumed);
    REQUIRE(resumed->checkpoints != nullptr);
    REQUIRE(resumed->state.schedule_step == (same ? 7 : 14));
    REQUIRE(resumed->state.world_size == 1);
  }
}

TEST_CASE("what cannot be written is refused before the work begins") {
  const test::TemporaryDirectory dir;
  Trained saved(1);
  REQUIRE_THAT(saved.manager(dir.path() + "/none/run", *saved.alone).error().message,
               Contains("checkpoints: make the directory") && Contains("No such file or directory"));
  overwrite(dir.path() + "/file", "");
  REQUIRE_THAT(saved.manager(dir.path() + "/file", *saved.alone).error().message,
               Contains("is not a directory"));
}

TEST_CASE("the error of a write comes with the next call, and training goes on meanwhile") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1);
  const auto manager = saved.manager(run);
  saved.save(*manager, 1);
  fs::rename(run, dir.path() + "/elsewhere");
  saved.state.step = 2;
  REQUIRE_OK(manager->save(saved.state));
  saved.optimizer->step();
  const auto late = manager->save(saved.state);
  REQUIRE_FALSE(late);
  REQUIRE_THAT(late.error().message,
               Contains("checkpoint step-00000002 of " + run + ": make ") && Contains("ENOENT"));
  fs::rename(dir.path() + "/elsewhere", run);
  REQUIRE_OK(manager->save(saved.state));
  REQUIRE_OK(manager->wait());
  Trained mine(9, 0);
  REQUIRE_OK(mine.reader(run)->restore());
  REQUIRE(mine == saved);
}

TEST_CASE("what is written is the state at the call, however far the next steps have come") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run";
  Trained saved(1), same(1);
  const auto manager = saved.manager(run);
  for (int step = 1; step < 20; ++step) {
    saved.state.step = step;
    REQUIRE_OK(manager->save(saved.state));
    saved.optimizer->step();
    same.optimizer->step();
    same.state.step = step;
  }
  REQUIRE_OK(manager->wait());
  Trained before(1);
  for (int step = 1; step < 19; ++step) before.optimizer->step();
  Trained mine(9, 0);
  REQUIRE_OK(mine.reader(run)->restore());
  REQUIRE(mine == before);
}

TEST_CASE("a launcher that waits for safe points hears of one when the checkpoint is on the disk") {
  const test::TemporaryDirectory dir;
  const std::string run = dir.path() + "/run", point = dir.path() + "/safe-point";
  Trained saved(1);
  const auto manager = saved.manager(run);
  saved.state.step = 5;
  ::setenv("MUSTER_SAFE_POINT_FILE", point.c_str(), 1);
  std::optional<std::int64_t> there;
  std::jthread launcher([&] {
    while (!fs::exists(point)) std::this_thread::yield();
    there = named_step(run, "LATEST");
    fs::remove(point);
  });
  const auto done = manager->save(saved.state);
  ::unsetenv("MUSTER_SAFE_POINT_FILE");
  launcher.join();
  REQUIRE_OK(done);
  REQUIRE(there == 5);
}

TEST_CASE("a full disk leaves the previous checkpoint and no other file") {
  const test::TemporaryDirectory dir;
  Trained first(1), second(2);
  const auto manager = first.manager(dir.path());
  first.save(*manager, 1);
  const auto before = names_in(dir.path());
  // The larger one is asked for as a whole before a byte is written.
  for (const auto& [size, limit] : {std::pair<std::size_t, rlim_t>{200'000, 0},
                                    {200'000, 1},
                                    {200'000, 100},
                                    {200'000, 4096},
                                    {200'000, 150'000},
                                    {3'000'000, 2'900'000}}) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG
      const rlimit rlim{limit, limit};
      const std::string bytes(size, 'x');
      if (::setrlimit(RLIMIT_FSIZE, &rlim) != 0) ::_exit(2);
      Manifest manifest;
      manifest.training.step = 2;
      const auto saved = write_step(dir.path(), manifest, {{"a", {"x"}}, {"model", {bytes}}}, true, 1);
      ::_exit(!saved && saved.error().message.find("write " + dir.path()) != std::string::npos ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    INFO("limit " << limit << " of " << size);
    REQUIRE(status == 0);
    REQUIRE(names_in(dir.path()) == before);
  }
  REQUIRE_OK(second.reader(dir.path())->restore());
  REQUIRE(second == first);
}

TEST_CASE("an old checkpoint that cannot be removed stays, and costs no new one") {
  const test::TemporaryDirectory dir;
  fs::permissions(dir.path(), fs::perms::all);
  const std::string run = dir.path() + "/run";
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // root may remove everything
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    fs::create_directory(run);
    const auto write = [&](std::int64_t step) {
      Manifest manifest;
      manifest.training.step = step;
      return write_step(run, manifest, {{"a", {"x"}}}, false, 1).has_value();
    };
    if (!write(1) || ::chmod((run + "/step-00000001").c_str(), 0555) != 0) ::_exit(3);
    ::_exit(write(2) && write(3) ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
  REQUIRE(contents(run + "/LATEST") == "step-00000003\n");
  REQUIRE(names_in(run) == std::set<std::string>{"LATEST", "step-00000001", "step-00000003"});
}

TEST_CASE("a run without --checkpoint does not continue from the root directory by mistake") {
  Trained mine(9, 0);
  const auto resumed =
      resume(mine.model, *mine.optimizer, *mine.alone, {.resume = "/", .model = "garment", .batch_size = 4});
  REQUIRE(resumed.error().message == "no checkpoint in /");
}

TEST_CASE("a kill at any system call of a save leaves a whole checkpoint, the old or the new one") {
  // In memory: what is looked at is the order of the calls, and it saves the waiting for the disk.
  const test::TemporaryDirectory dir("/dev/shm");
  const std::string run = dir.path() + "/run", old_run = dir.path() + "/old";
  const std::vector<std::string> names = {"model.safetensors", "optim.safetensors"};
  const auto write = [&](const std::string& root, std::int64_t step, const std::string& text) {
    Manifest manifest;
    manifest.training.step = step;
    const StepFiles files{{names[0], {text, text}}, {names[1], {"o", text}}};
    return write_step(root, manifest, files, step == 7, 1).has_value();
  };
  fs::create_directory(old_run);
  REQUIRE(write(old_run, 7, "old"));
  const std::int64_t step = GENERATE(7, 8);  // in place of the old one, and beside it
  bool saw_old = false, saw_new = false;
  int kills = 0;
  for (bool finished = false; !finished; ++kills) {
    fs::remove_all(run);
    fs::copy(old_run, run, fs::copy_options::recursive);
    REQUIRE(kills < 1000);
    INFO("killed at stop " << kills);
    finished = ends_traced([&] { return write(run, step, "new"); },
                           [left = kills](pid_t) mutable { return left-- != 0; });
    const auto steps = restorable_steps(run);
    REQUIRE_FALSE(steps.empty());
    const auto read = read_step(run, steps.front(), names);
    REQUIRE_OK(read);
    const std::string& text = read->files.at(names[1]);
    REQUIRE((text == "oold" || (text == "onew" && steps.front() == step)));
    (text == "oold" ? saw_old : saw_new) = true;
    // The next run finds what it can go on from, and nothing else once it has begun.
    REQUIRE_OK(prepare_checkpoints(run));
    REQUIRE(write(run, 9, "later"));
    REQUIRE(restorable_steps(run).front() == 9);
    for (const std::string& name : names_in(run)) REQUIRE(name.find(".tmp-") == std::string::npos);
  }
  REQUIRE(kills > 40);
  REQUIRE(saw_old);
  REQUIRE(saw_new);
}

TEST_CASE("files are on the disk before a name leads to them, and each name before the next step is taken") {
  const test::TemporaryDirectory dir("/dev/shm");
  const std::string base = fs::canonical(dir.path()), run = base + "/run";
  Manifest manifest;
  manifest.training.step = 8;
  const StepFiles files{{"model.safetensors", {"weights"}}, {"optim.safetensors", {"momentum"}}};
  const auto save = [&] { return write_step(run, manifest, files, true, 1).has_value(); };
  using Calls = std::vector<std::string>;
  REQUIRE(disk_calls(base, [&] { return prepare_checkpoints(run).has_value(); }) == Calls{"fsync ."});
  for (const bool again : {false, true}) {  // beside nothing, and in place of the same step
    INFO("again " << again);
    Calls calls = disk_calls(base, save);
    if (calls.size() > 3) std::sort(calls.begin(), calls.begin() + 3);  // of these any may be the first
    REQUIRE(calls == Calls{"fsync run/.tmp/model.safetensors", "fsync run/.tmp/optim.safetensors",
                           "fsync run/.tmp/state.json", "fsync run/.tmp",
                           "rename run/.tmp to run/step-00000008", "fsync run",  //
                           "fsync run/BEST.tmp", "rename run/BEST.tmp to run/BEST", "fsync run",
                           "fsync run/LATEST.tmp", "rename run/LATEST.tmp to run/LATEST", "fsync run"});
  }
}

TEST_CASE("state.json survives being written and read, and nothing else is taken for one") {
  Manifest manifest{.model = "a \"model\"", .optimizer = "SGD", .training = Trained(1).state};
  manifest.loss_scale = 65536;
  manifest.random_seed = ~0ULL;
  manifest.files["f"] = {~0ULL, 0xE3069283};
  const std::string text = to_text(manifest);
  const auto read = parse_manifest(text);
  REQUIRE_OK(read);
  REQUIRE(*read == manifest);
  const std::string deep(100'000, '[');
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  const std::string epoch = "\"epoch\": 3";
  for (const std::string& other :
       {std::string(), std::string("[]"), std::string("{}"), std::string("null"), std::string("\xff"), deep,
        "{\"files\":" + deep, "{\"model\":" + deep + std::string(deep.size(), ']') + "}",
        with(epoch, "\"epoch\": 1e300"), with(epoch, "\"epoch\": 4"), with(epoch, "\"epoch\": \"3\""),
        with("\"SGD\"", "7"), text + " "}) {
    const auto refused = parse_manifest(other);
    REQUIRE_FALSE(refused);
    REQUIRE(refused.error().code == ErrorCode::kCorrupt);
  }
  REQUIRE_THAT(parse_manifest(with("\"version\": 1", "\"version\": 2")).error().message,
               Contains("of version 2"));
  // A sum that is right makes no number right.
  manifest.training.world_size = 0;
  REQUIRE_THAT(parse_manifest(to_text(manifest)).error().message, Contains("out of range"));
}

TEST_CASE("the CRC-32C is the standard's, in one piece and in several") {
  REQUIRE(crc32c("123456789") == 0xE3069283);  // RFC 3720's check value
  REQUIRE(crc32c("") == 0);
  std::string bytes(1000, ' ');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i);
  for (const std::size_t cut : {0, 1, 7, 8, 9, 500, 1000}) {
    boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> expected;
    expected.process_bytes(bytes.data(), bytes.size());
    REQUIRE(crc32c(bytes.substr(cut), crc32c(bytes.substr(0, cut))) == expected.checksum());
  }
}

TEST_CASE("a large file of pieces of any size is written as it is, on a disk and in memory") {
  constexpr std::size_t kBlock = std::size_t{8} << 20;
  for (const char* const parent : {"/var/tmp", "/dev/shm"})
    for (const std::size_t size :
         {kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 2 * kBlock + 4096, 3 * kBlock - 5}) {
      const test::TemporaryDirectory dir(parent);
      std::string bytes(size, ' ');
      for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13U);
      std::vector<std::string_view> pieces;
      std::string_view rest = bytes;
      for (std::size_t piece = 7; !rest.empty(); piece = 3 * piece + 1) {
        pieces.push_back(rest.substr(0, piece));
        rest.remove_prefix(pieces.back().size());
      }
      const auto sum = write_new_file(dir.path() + "/file", pieces);
      REQUIRE_OK(sum);
      REQUIRE(*sum == FileSum{size, crc32c(bytes)});
      REQUIRE((contents(dir.path() + "/file") == bytes));
    }
}

TEST_CASE("a new file gets the permissions the umask allows") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/file";
  const std::string_view piece = "x";
  REQUIRE_OK(write_file_atomically(path, std::span(&piece, 1)));
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  REQUIRE((info.st_mode & 0777U) == (0666U & ~mask));
}
