// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/plan/job_plan.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

/// What Python executes under --run-path, given with -c; its arguments are the script and the script's. It
/// does what torchrun's entry point does there: the script is __main__, and an exception is written to
/// TORCHELASTIC_ERROR_FILE as @record does it. Standard library only: a script that needs no PyTorch does not
/// wait for it. No '$': arguments are put through substitution.h. Source: torch/distributed/run.py
/// (run_script_path) and elastic/multiprocessing/errors.
constexpr std::string_view kRunPathProgram = R"(import runpy, sys
def record(error):
    import json, os, time, traceback
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": type(error).__name__ + ": " + str(error), "extraInfo": info}
    with open(path, "w") as file:
        json.dump({"message": message}, file)
del sys.argv[0]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as error:
    record(error)
    raise
)";

enum class FileKind { kMissing, kDirectory, kFile, kExecutable };

FileKind kind_of(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return FileKind::kMissing;
  if (S_ISDIR(info.st_mode)) return FileKind::kDirectory;
  return ::access(path.c_str(), X_OK) == 0 ? FileKind::kExecutable : FileKind::kFile;
}

/// The first line, or the part of it that names an interpreter. What a pipe or a terminal gives is the
/// program's to read.
std::string first_line(const std::string& path) {
  if (struct stat info{}; ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return {};
  const UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  std::string out(128, '\0');
  out.resize(static_cast<std::size_t>(std::max(ssize_t{0}, ::read(fd.get(), out.data(), out.size()))));
  return out.substr(0, out.find_first_of("\r\n"));
}

/// execve takes a bare name for a path, but a reader of `ps` should see which file it was.
std::string as_path(const std::string& name) {
  return name.find('/') == std::string::npos ? "./" + name : name;
}

Result<std::string> find_python(const Environment& environment) {
  if (const auto chosen = lookup(environment, "PYTHON_EXEC"); chosen && !chosen->empty()) {
    if (chosen->find('/') != std::string_view::npos) {
      if (kind_of(std::string(*chosen)) == FileKind::kExecutable) return std::string(*chosen);
    } else if (auto found = search_path(*chosen, environment)) {
      return *found;
    }
    return fail(ErrorCode::kNotFound, "PYTHON_EXEC={}: no such executable", *chosen);
  }
  if (const auto venv = lookup(environment, "VIRTUAL_ENV"); venv && !venv->empty()) {
    const std::string path = std::string(*venv) + "/bin/python";
    if (kind_of(path) == FileKind::kExecutable) return path;
  }
  for (const std::string_view name : {"python3", "python"})
    if (auto found = search_path(name, environment)) return *found;
  return fail(
      ErrorCode::kNotFound,
      "a Python program needs an interpreter, and neither python3 nor python is on PATH; set PYTHON_EXEC");
}

/// The program's own arguments, with torch.distributed.launch's before them.
void add_arguments(const Options& options, Command& out) {
  if (options.no_use_env || options.local_rank_arg) {
    const std::string& name = options.local_rank_arg.value_or("local-rank");
    out.arguments.push_back(fmt::format("{}{}=${{local_rank}}", name.starts_with('-') ? "" : "--", name));
  }
  out.arguments.insert(out.arguments.end(), options.arguments.begin(), options.arguments.end());
}

Result<Command> with_python(const Options& options, const Environment& environment) {
  MUSTER_TRY(std::string python, find_python(environment));
  Command out{python, {python, "-u"}, options.program};
  if (options.run_path)
    out.arguments = {python, "-X", "faulthandler", "-c", std::string(kRunPathProgram)};
  else if (options.module)
    out.arguments.push_back("-m");
  out.arguments.push_back(options.program);
  add_arguments(options, out);
  return out;
}

Command direct(std::string path, const Options& options) {
  Command out{std::move(path), {options.program}, options.program};
  add_arguments(options, out);
  return out;
}

}  // namespace

std::optional<std::string> search_path(std::string_view name, const Environment& environment) {
  if (name.empty()) return std::nullopt;
  const std::string_view path = lookup(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  for (const std::string_view directory : split(path, ':')) {
    std::string candidate = fmt::format("{}/{}", directory.empty() ? "." : directory, name);
    if (kind_of(candidate) == FileKind::kExecutable) return candidate;
  }
  return std::nullopt;
}

Result<Command> resolve_program(const Options& options, const Environment& environment) {
  const bool passes_rank = options.no_use_env || options.local_rank_arg;
  if (passes_rank && options.use_env)
    return usage("--use-env and {} contradict each other; leave one of them out",
                 options.no_use_env ? "--no-use-env" : "--local-rank-arg");
  if (passes_rank && options.no_python)
    return usage(
        "--no-python cannot be combined with --no-use-env or --local-rank-arg; write "
        "'--local-rank=${local_rank}' as an argument of the program instead");
  if (options.module && options.no_python && !options.run_path)
    return usage("-m runs a Python module, so it cannot be combined with --no-python");
  if (options.module && !options.run_path) return with_python(options, environment);

  // A program that holds ${local_rank} in its name differs per worker: what is there cannot be checked
  // beforehand.
  const std::string& name = options.program;
  if (name.empty()) return usage("the program's name is empty; is the variable unset that should hold it?");
  const bool varies =
      name.find("$local_rank") != std::string::npos || name.find("${local_rank}") != std::string::npos;
  const FileKind kind = kind_of(name);
  const bool path_like = name.find('/') != std::string::npos;
  if (kind == FileKind::kMissing && path_like && !varies && errno != ENOENT && errno != ENOTDIR)
    return fail(ErrorCode::kUnsupported, errno_error(name, errno).message);

  if (options.run_path) {
    if (kind == FileKind::kMissing && !varies)
      return fail(ErrorCode::kNotFound, "{}: no such file; --run-path needs a script", name);
    return with_python(options, environment);
  }
  if (options.no_python) {
    if (varies && path_like) return direct(name, options);
    // As execvp does: a name without a slash is only looked for on PATH.
    if (!path_like) {
      if (auto found = search_path(name, environment)) return direct(std::move(*found), options);
      return fail(ErrorCode::kNotFound, "{}: not found on PATH{}", name,
                  kind == FileKind::kMissing ? "" : fmt::format("; to run the file here, write ./{}", name));
    }
    if (kind == FileKind::kExecutable) return direct(name, options);
    if (kind == FileKind::kMissing) return fail(ErrorCode::kNotFound, "{}: no such file", name);
    return fail(
        ErrorCode::kUnsupported,
        "{}: not an executable file; chmod +x it, or run it without --no-python if it is a Python script",
        name);
  }

  if (varies)
    return name.ends_with(".py") ? with_python(options, environment)
                                 : Result<Command>(direct(as_path(name), options));
  switch (kind) {
    case FileKind::kDirectory:
      if (kind_of(name + "/__main__.py") != FileKind::kMissing) return with_python(options, environment);
      break;  // python/ hides no python
    case FileKind::kExecutable:
      if (name.ends_with(".py") || name.ends_with(".pyz")) return with_python(options, environment);
      return direct(as_path(name), options);
    case FileKind::kFile:
      if (::access(name.c_str(), R_OK) != 0)
        return fail(ErrorCode::kUnsupported, errno_error(name, errno).message + "; is it yours to run?");
      if (const std::string line = first_line(name);
          line.starts_with("\177ELF") ||
          (line.starts_with("#!") && !name.ends_with(".py") && line.find("python") == line.npos))
        return fail(ErrorCode::kUnsupported, "{}: a {} without execute permission; chmod +x it", name,
                    line[0] == '#' ? fmt::format("script ({})", one_line(line)) : "program");
      return with_python(options, environment);
    case FileKind::kMissing:
      break;
  }
  if (!path_like && !name.ends_with(".py"))
    if (auto found = search_path(name, environment)) return direct(std::move(*found), options);
  if (kind == FileKind::kDirectory)
    return fail(ErrorCode::kUnsupported, "{}: a directory without a __main__.py", name);
  if (path_like || name.ends_with(".py")) return fail(ErrorCode::kNotFound, "{}: no such file", name);
  return fail(ErrorCode::kNotFound, "{}: neither a file here nor a program on PATH", name);
}

}  // namespace muster::launcher
