// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <set>
#include <stdexcept>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/checkpoint.h>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_group.h"
#include "worker_runtime/core/atomic_file.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/training/safetensors.h"

using namespace muster;
using Catch::Matchers::Contains;

namespace {

/// A model with an optimizer that has made `steps` steps.
struct Trained {
  nn::Model model = nn::garment_classifier();
  std::unique_ptr<Sgd> sgd;
  TrainingState state;

  explicit Trained(std::uint64_t seed, int steps = 1) {
    Generator generator(seed);
    model.initialize(generator);
    // Thrown, not required: it is made on threads, too.
    if (const auto allocated = model.allocate(*make_compute(DeviceType::kCpu)); !allocated)
      throw std::runtime_error(allocated.error().message);
    auto made = Sgd::create(model, {});
    if (!made) throw std::runtime_error(made.error().message);
    sgd = *std::move(made);
    for (int step = 0; step < steps; ++step) {
      for (const nn::Parameter& parameter : model.parameters())
        generator.uniform(std::span(model.grads() + parameter.offset, parameter.count), -1, 1);
      sgd->step();
    }
    state = {.model = "garment",
             .epoch = 3,
             .step = steps,
             .seed = seed + (1ULL << 63),
             .best_accuracy = 0.1 + 0.2,
             .best_epoch = 2,
             .world_size = 2,
             .batch_size = 4};
  }
  [[nodiscard]] Result<void> save(const std::string& path) const {
    return save_checkpoint(path, model, *sgd, state);
  }
};

std::string contents(const std::string& path) {
  auto bytes = read_file(path);
  REQUIRE_OK(bytes);
  return *std::move(bytes);
}

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Whether a traced child's new file has a name of its own, by the system calls that have ended.
class NamedFile {
 public:
  void look(pid_t child) {
    __ptrace_syscall_info info{};
    REQUIRE(::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) > 0);
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) call_ = info.entry.nr;
    if (info.op != PTRACE_SYSCALL_INFO_EXIT || info.exit.is_error != 0) return;
    if (call_ == SYS_linkat) named_ = was_named_ = true;
    if (call_ == SYS_rename) named_ = false;
  }
  [[nodiscard]] bool is_named() const { return named_; }
  [[nodiscard]] bool was_named() const { return was_named_; }

 private:
  std::uint64_t call_ = 0;
  bool named_ = false;
  bool was_named_ = false;
};

/// Runs `body` in a child; returns its wait status.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("a checkpoint restores parameters, momentum and state bit for bit") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run.safetensors";
  const Trained saved(1, 2);
  REQUIRE_OK(saved.save(path));
  REQUIRE(dir.entries() == std::vector<std::string>{"run.safetensors"});
  const auto loaded = load_checkpoint(path, saved.model, "garment");
  REQUIRE_OK(loaded);
  REQUIRE(loaded->state == saved.state);
  REQUIRE(loaded->params == saved.model.read_params());
  REQUIRE(loaded->optimizer == saved.sgd->read_state());
}

TEST_CASE("a checkpoint from within an epoch has a format of its own, and every rank learns the place") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  Trained saved(1, 2);
  REQUIRE_OK(saved.save(path));
  REQUIRE_THAT(contents(path), Contains("muster-checkpoint-1") && !Contains("epoch_samples"));
  saved.state.epoch_samples = 16;
  saved.state.epoch_loss_sum = 0.1 + 0.2;
  REQUIRE_OK(saved.save(path));
  REQUIRE_THAT(contents(path), Contains("muster-checkpoint-2"));
  const auto errors = test::run_ranks(2, [&](test::ThreadGroup& group) -> std::string {
    Trained mine(9, 0);
    const auto state = restore_checkpoint(path, "garment", mine.model, *mine.sgd, group);
    if (!state) return state.error().message;
    return *state == saved.state ? "" : "another state";
  });
  REQUIRE(errors == std::vector<std::string>(2));
}

TEST_CASE("a checkpoint from before the first step has no momentum") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const Trained saved(1, 0);
  REQUIRE_OK(saved.save(path));
  const auto loaded = load_checkpoint(path, saved.model, "garment");
  REQUIRE_OK(loaded);
  REQUIRE(loaded->optimizer == OptimizerState{});
}

TEST_CASE("every rank continues from what rank 0 reads") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const Trained saved(1, 2);
  REQUIRE_OK(saved.save(path));
  const std::vector<float> params = saved.model.read_params();
  const OptimizerState optimizer = saved.sgd->read_state();
  const auto errors = test::run_ranks(3, [&](test::ThreadGroup& group) -> std::string {
    Trained mine(9, 0);
    // Only rank 0 sees the file.
    const auto state = restore_checkpoint(group.rank() == 0 ? path : "/nonexistent", "garment", mine.model,
                                          *mine.sgd, group);
    if (!state) return state.error().message;
    if (!(*state == saved.state)) return "another state";
    if (mine.model.read_params() != params || mine.sgd->read_state() != optimizer) return "other values";
    return {};
  });
  REQUIRE(errors == std::vector<std::string>(3));
}

TEST_CASE(
    "AdamW, its loss scale and what Dropout draws continue from a checkpoint, and another optimizer is "
    "refused") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const auto adamw_of = [](nn::Model& model) {
    auto made = AdamW::create(model, {});
    if (!made || !(*made)->use_grad_scaler({.init_scale = 8, .growth_interval = 2}))
      throw std::runtime_error("AdamW::create");
    return *std::move(made);
  };
  Trained saved(1, 0);
  const auto adamw = adamw_of(saved.model);
  Generator generator(2);
  for (int step = 0; step < 3; ++step) {
    for (const nn::Parameter& parameter : saved.model.parameters())
      generator.uniform(std::span(saved.model.grads() + parameter.offset, parameter.count), -1, 1);
    adamw->step();
  }
  saved.state.step = 3;
  saved.model.manual_seed(~0ULL, 9);
  REQUIRE_OK(save_checkpoint(path, saved.model, *adamw, saved.state));
  const OptimizerState expected = adamw->read_state();
  REQUIRE((expected.steps == 3 && expected.loss_scale == 16 && expected.growth_tracker == 1));
  const auto errors = test::run_ranks(2, [&](test::ThreadGroup& group) -> std::string {
    Trained mine(9, 0);
    const auto other = restore_checkpoint(path, "garment", mine.model, *mine.sgd, group);
    if (other) return "restored by SGD";
    const auto continued = adamw_of(mine.model);
    const auto state = restore_checkpoint(path, "garment", mine.model, *continued, group);
    if (!state) return state.error().message;
    const nn::RandomState random = mine.model.read_random_state();
    if (random.seed != ~0ULL || random.step != 9) return "other random numbers";
    return continued->read_state() == expected ? other.error().message : "another state";
  });
  REQUIRE(errors[0] == "checkpoint " + path +
                           ": it is of an optimizer with exp_avg, this run's has momentum; continue with the "
                           "optimizer that wrote it");
  REQUIRE(errors[1] == "checkpoint " + path + ": rank 0 could not load it");
}

TEST_CASE("when rank 0 cannot read the checkpoint every rank fails and nothing has changed") {
  const auto errors = test::run_ranks(2, [&](test::ThreadGroup& group) -> std::string {
    Trained mine(9, 1);
    const std::vector<float> before = mine.model.read_params();
    const auto state = restore_checkpoint("/nonexistent/run", "garment", mine.model, *mine.sgd, group);
    if (state) return "restored from nothing";
    if (mine.model.read_params() != before) return "changed";
    return state.error().message;
  });
  REQUIRE(errors[0] == "checkpoint: open /nonexistent/run: No such file or directory (ENOENT)");
  REQUIRE(errors[1] == "checkpoint /nonexistent/run: rank 0 could not load it");
}

TEST_CASE("a checkpoint of another model is refused with the first tensor that differs") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  REQUIRE_OK(Trained(1).save(path));
  const nn::Model other = nn::mlp();
  const auto loaded = load_checkpoint(path, other, "mlp");
  REQUIRE_FALSE(loaded);
  REQUIRE(loaded.error().code == ErrorCode::kMismatch);
  REQUIRE(
      loaded.error().message ==
      "checkpoint " + path +
          ": it is a checkpoint of model 'garment', this run trains 'mlp': tensor "
          "'fc1.weight' is F32 120x256, the model's is F32 512x784; these are the weights of another model");
}

TEST_CASE("a safetensors file that is no checkpoint is refused as such") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/weights";
  const auto bytes = safetensors::serialize({{"fc", DType::kUInt8, {1}, "x"}}, {{"format", "pt"}});
  REQUIRE_OK(bytes);
  overwrite(path, *bytes);
  const nn::Model model = nn::garment_classifier();
  REQUIRE_THAT(load_checkpoint(path, model, "garment").error().message,
               Contains("not a checkpoint of this program"));
}

TEST_CASE("a checkpoint with any damaged byte, or cut anywhere, is refused") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const Trained saved(1);
  REQUIRE_OK(saved.save(path));
  const std::string whole = contents(path);
  for (std::size_t at = 0; at < whole.size(); at += at < 3000 ? 7 : 9973) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x04);
    overwrite(path, damaged);
    const auto loaded = load_checkpoint(path, saved.model, "garment");
    INFO("byte " << at << " '" << whole[at] << "'");
    REQUIRE_FALSE(loaded);
    overwrite(path, whole.substr(0, at));
    REQUIRE_FALSE(load_checkpoint(path, saved.model, "garment"));
  }
}

TEST_CASE("a full disk leaves the previous checkpoint and no other file") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const Trained first(1);
  REQUIRE_OK(first.save(path));
  const std::string before = contents(path);
  const Trained second(2);
  for (const rlim_t limit : {0, 1, 100, 4096, 200'000, 350'000}) {
    const int status = in_child([&] {
      std::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG
      const rlimit rlim{limit, limit};
      if (::setrlimit(RLIMIT_FSIZE, &rlim) != 0) return 2;
      const auto saved = second.save(path);
      return !saved && saved.error().message.find("write " + path) != std::string::npos ? 0 : 1;
    });
    INFO("limit " << limit);
    REQUIRE(status == 0);
    REQUIRE(contents(path) == before);
    REQUIRE(dir.entries() == std::vector<std::string>{"run"});
  }
}

TEST_CASE("a kill at any system call of a save leaves a whole checkpoint, the old or the new one") {
  const test::TemporaryDirectory dir;
  const std::string path = dir.path() + "/run";
  const std::string fresh = dir.path() + "/new";
  const Trained first(1);
  const Trained second(2);
  REQUIRE_OK(second.save(fresh));
  const std::string new_bytes = contents(fresh);
  REQUIRE(::unlink(fresh.c_str()) == 0);
  REQUIRE_OK(first.save(path));
  const std::string old_bytes = contents(path);
  bool finished = false;
  int kills = 0;
  std::set<std::string> expected_left;
  bool saw_old = false;
  bool saw_new = false;
  for (int stop_at = 0; !finished; ++stop_at) {
    REQUIRE(stop_at < 1000);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
      ::raise(SIGSTOP);
      ::_exit(second.save(path) ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSTOPPED(status));
    REQUIRE(::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD) == 0);
    NamedFile file;
    for (int stop = 0; WIFSTOPPED(status); ++stop) {  // a stop at every entry to and exit from the kernel
      if (stop > 0) file.look(child);
      if (stop == stop_at) {
        ::kill(child, SIGKILL);
        REQUIRE(::waitpid(child, &status, 0) == child);
        ++kills;
        if (file.is_named()) expected_left.insert("run.tmp-" + std::to_string(child));
        break;
      }
      REQUIRE(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
      REQUIRE(::waitpid(child, &status, 0) == child);
    }
    if (WIFEXITED(status)) {
      REQUIRE(WEXITSTATUS(status) == 0);
      REQUIRE(file.was_named());
      REQUIRE_FALSE(file.is_named());
      finished = true;
    }
    const std::string now = contents(path);
    saw_old = saw_old || now == old_bytes;
    saw_new = saw_new || now == new_bytes;
    INFO("killed at stop " << stop_at);
    REQUIRE((now == old_bytes || now == new_bytes));
    REQUIRE_OK(load_checkpoint(path, first.model, "garment"));
    overwrite(path, old_bytes);
  }
  REQUIRE(kills > 10);
  REQUIRE(saw_old);
  REQUIRE(saw_new);
  // Exactly what was killed between naming the new file and renaming it. How many those are differs: the
  // children do not all make equally many calls before, since their allocator asks the kernel for more or
  // less.
  std::vector<std::string> left = dir.entries();
  std::erase(left, "run");
  REQUIRE(std::set(left.begin(), left.end()) == expected_left);
}

TEST_CASE("a path that cannot be written is refused before the work begins") {
  const test::TemporaryDirectory dir;
  REQUIRE_OK(check_checkpoint_path(dir.path() + "/run"));
  REQUIRE_THAT(check_checkpoint_path(dir.path() + "/none/run").error().message,
               Contains("cannot be written"));
  REQUIRE_THAT(check_checkpoint_path(dir.path()).error().message, Contains("is not a regular file"));
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
