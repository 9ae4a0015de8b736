// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/gpu_software.h"

#include <array>
#include <charconv>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <tuple>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/hardware/small_files.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMostSourceBytes = 64 << 10;

/// What is looked for, the newest first. A CUDA runtime is of one major version, which its soname tells.
struct Wanted {
  GpuLibrary GpuSoftware::*library;
  const char *soname, *entry;  // that tells the version
  std::string_view folder;     // below site-packages
  std::string_view package;    // as the name of pip's metadata begins
  int cuda = 0;
};
constexpr auto kCuda = &GpuSoftware::runtime, kNccl = &GpuSoftware::nccl, kCudnn = &GpuSoftware::cudnn;
constexpr const char* kCudaEntry = "cudaRuntimeGetVersion";
constexpr std::array kWanted = {
    Wanted{kCuda, "libcudart.so.13", kCudaEntry, "nvidia/cu13/lib", "nvidia_cuda_runtime", 13},
    Wanted{kCuda, "libcudart.so.12", kCudaEntry, "nvidia/cuda_runtime/lib", "nvidia_cuda_runtime_cu", 12},
    Wanted{kCuda, "libcudart.so.11.0", kCudaEntry, "nvidia/cuda_runtime/lib", "nvidia_cuda_runtime_cu", 11},
    Wanted{kNccl, "libnccl.so.2", "ncclGetVersion", "nvidia/nccl/lib", "nvidia_nccl_cu"},
    Wanted{kCudnn, "libcudnn.so.9", "cudnnGetVersion", "nvidia/cudnn/lib", "nvidia_cudnn_cu"},
    Wanted{kCudnn, "libcudnn.so.8", "cudnnGetVersion", "nvidia/cudnn/lib", "nvidia_cudnn_cu"},
};

/// 0: no number.
int major_of(std::string_view version) {
  int out = 0;
  std::from_chars(version.data(), version.data() + version.size(), out);
  return out;
}

/// The folders of packages of an interpreter, as they are searched; none: the program is no Python.
std::vector<std::string> site_packages(const std::string& program, const Environment& environment) {
  std::error_code unknown;
  const std::string python = std::filesystem::canonical(program, unknown).filename();
  if (!python.starts_with("python3.")) return {};
  // A virtual environment's prefix is where the link is, not where it leads.
  const std::filesystem::path bin = std::filesystem::path(program).parent_path();
  const std::filesystem::path prefix = std::filesystem::canonical(bin, unknown).parent_path();
  std::vector<std::string> out;
  for (const std::string_view each : split(lookup(environment, "PYTHONPATH").value_or(""), ':'))
    if (!each.empty()) out.emplace_back(each);
  if (!std::filesystem::exists(prefix / "pyvenv.cfg", unknown))
    out.push_back(
        fmt::format("{}/.local/lib/{}/site-packages", lookup(environment, "HOME").value_or(""), python));
  out.push_back(prefix / "lib" / python / "site-packages");
  if (prefix == "/usr") out.push_back(fmt::format("/usr/local/lib/{}/dist-packages", python));
  return out;
}

/// What the one package of that name says: "nvidia_nccl_cu13-2.27.7.dist-info". Where there are several, each
/// has written over the other's files, and which one is there is not known.
void read_package(const std::string& site, const Wanted& wanted, GpuLibrary& out) {
  constexpr std::string_view kEnd = ".dist-info";
  std::vector<std::string> found = list_directory(site);
  std::erase_if(found, [&](const std::string& each) {
    return !each.starts_with(wanted.package) || !each.ends_with(kEnd);
  });
  if (found.size() != 1) return;
  std::string_view rest = std::string_view(found[0]).substr(wanted.package.size());
  rest.remove_suffix(kEnd.size());
  out.cuda = major_of(take_front(rest, '-'));
  out.version = rest;
}

/// As CUDA writes it.
std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// As NCCL and cuDNN write theirs: 22809 is 2.28.9 and 91400 is 9.14.0; 2804 was 2.8.4, 8907 was 8.9.7.
std::string dotted(int version) {
  const int unit = version < 10'000 ? 1000 : 10'000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

/// The path and the version of the library that the loader has for a path or a soname, as far as it has any.
void ask_library(const char* file, const Wanted& wanted, GpuLibrary& out) {
  void* const library = ::dlopen(file, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return;
  const link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) out.path = map->l_name;
  int version = 0;
  if (void* const entry = ::dlsym(library, wanted.entry)) {
    if (wanted.library == kCudnn)
      version = static_cast<int>(reinterpret_cast<std::size_t (*)()>(entry)());
    else
      reinterpret_cast<int (*)(int*)>(entry)(&version);
  }
  if (version != 0) out.version = wanted.library == kCuda ? cuda_text(version) : dotted(version);
  ::dlclose(library);
}

GpuLibrary in_packages(const Wanted& wanted, const std::vector<std::string>& sites) {
  GpuLibrary out;
  for (const std::string& site : sites)
    for (const std::string_view folder : {wanted.folder, std::string_view("../..")}) {
      const std::string path = (std::filesystem::path(site) / folder / wanted.soname).lexically_normal();
      if (!out.path.empty() || ::access(path.c_str(), R_OK) != 0) continue;
      out.path = path;
      if (folder == wanted.folder) read_package(site, wanted, out);
      if (out.version.empty()) ask_library(path.c_str(), wanted, out);
    }
  return out;
}

}  // namespace

std::string software_text(const GpuSoftware& software) {
  std::string out =
      fmt::format("driver {} (CUDA up to {})", software.driver, cuda_text(software.driver_cuda));
  for (const auto& [name, library] : {std::pair("CUDA runtime", &software.runtime),
                                      std::pair("NCCL", &software.nccl), std::pair("cuDNN", &software.cudnn)})
    out +=
        library->path.empty()
            ? fmt::format(", {} not found", name)
            : fmt::format(", {} {} ({})", name,
                          library->version.empty() ? "of unknown version" : library->version, library->path);
  if (!software.torch.empty())
    out += fmt::format(", PyTorch {} ({})", software.torch,
                       software.torch_cuda.empty() ? "without CUDA" : "for CUDA " + software.torch_cuda);
  return out;
}

std::vector<std::string> judge_software(const GpuSoftware& software) {
  if (!software.torch.empty() && software.torch_cuda.empty())
    return {fmt::format("PyTorch {} is built without CUDA and does not use GPUs; install a build with CUDA",
                        software.torch)};
  const char* const program = software.torch.empty() ? "the CUDA runtime" : "PyTorch";
  const int cuda = software.torch.empty() ? software.runtime.cuda : major_of(software.torch_cuda);
  const int newest = software.driver_cuda / 1000;
  std::vector<std::string> out;
  // Within a major version a newer runtime works with an older driver.
  if (newest != 0 && cuda > newest)
    out.push_back(
        fmt::format("{0} is for CUDA {1}, but driver {2} runs CUDA {3} at most; update the driver, or "
                    "install a build for CUDA {3}",
                    program, cuda, software.driver, newest));
  for (const auto& [name, package, library] :
       {std::tuple("NCCL", "nccl", &software.nccl), std::tuple("cuDNN", "cudnn", &software.cudnn)})
    if (cuda != 0 && library->cuda != 0 && library->cuda != cuda)
      out.push_back(
          fmt::format("{0} {1} is built for CUDA {2}, but {3} is for CUDA {4}; replace the package "
                      "nvidia-{5}-cu{2} by nvidia-{5}-cu{4}",
                      name, library->version, library->cuda, program, cuda, package));
  return out;
}

std::string python_text(std::string_view source, std::string_view variable) {
  for (std::string_view line : split(source, '\n')) {
    // "cuda: Optional[str] = '13.0'"
    if (!line.starts_with(variable) || line.find_first_of(" :=") != variable.size()) continue;
    (void)take_front(line, '=');
    const std::string_view value = trimmed(line);
    if (value.empty() || (value[0] != '\'' && value[0] != '"')) return {};
    return std::string(value.substr(1, value.find(value[0], 1) - 1));
  }
  return {};
}

void find_libraries(const std::string& program, const Environment& environment, GpuSoftware& out) {
  const std::vector<std::string> sites = site_packages(program, environment);
  for (const std::string& site : sites) {
    const auto source = read_file(site + "/torch/version.py", kMostSourceBytes);
    if (!source) continue;
    out.torch = python_text(*source, "__version__");
    out.torch_cuda = python_text(*source, "cuda");
    break;
  }
  const int torch_cuda = major_of(out.torch_cuda);
  for (const bool packages : {true, false})
    for (const Wanted& wanted : kWanted) {
      GpuLibrary& library = out.*wanted.library;
      const bool other = wanted.cuda != 0 && torch_cuda != 0 && wanted.cuda != torch_cuda;
      if (other || !library.path.empty()) continue;
      if (packages)
        library = in_packages(wanted, sites);
      else
        ask_library(wanted.soname, wanted, library);
      if (wanted.cuda != 0 && !library.path.empty()) library.cuda = wanted.cuda;
    }
}

}  // namespace muster::launcher
