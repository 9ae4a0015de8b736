// SPDX-License-Identifier: Apache-2.0
#include "launcher/checks/gpu_software.h"

#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster::launcher;

namespace {

/// As on an H200 with PyTorch from pip.
GpuSoftware fitting() {
  return {"580.159.04",
          13000,
          {"/p/libcudart.so.13", "13.0.96", 13},
          {"/p/libnccl.so.2", "2.28.9", 13},
          {"/p/libcudnn.so.9", "9.19.0.56", 13},
          "2.11.0+cu130",
          "13.0"};
}

std::string only(const GpuSoftware& software) {
  const auto all = judge_software(software);
  REQUIRE(all.size() == 1);
  return all[0];
}

/// An installation of Python with packages, made of empty files.
struct Python {
  muster::test::TemporaryDirectory directory;
  std::string prefix = directory.path() + "/env";
  std::string site = prefix + "/lib/python3.11/site-packages";
  std::string program = prefix + "/bin/python";
  muster::Environment environment{{"HOME", directory.path() + "/home"}};

  Python() {
    std::filesystem::create_directories(prefix + "/bin");
    add(directory.path() + "/elsewhere/bin/python3.11");
    std::filesystem::create_symlink(directory.path() + "/elsewhere/bin/python3.11", program);
  }
  static void add(const std::string& path, const std::string& content = "") {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << content;
  }
  static void add_torch(const std::string& site, const std::string& version, const std::string& cuda) {
    add(site + "/torch/version.py", "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n" +
                                        ("__version__ = '" + version + "'\ndebug = False\n") +
                                        "cuda: Optional[str] = " + cuda + "\ngit_version = 'abc'\n");
  }
  [[nodiscard]] GpuSoftware read() const {
    GpuSoftware out;
    find_libraries(program, environment, out);
    return out;
  }
};

}  // namespace

TEST_CASE("the versions are one line, and what is not there is said") {
  REQUIRE(software_text(fitting()) ==
          "driver 580.159.04 (CUDA up to 13.0), CUDA runtime 13.0.96 (/p/libcudart.so.13), NCCL 2.28.9 "
          "(/p/libnccl.so.2), cuDNN 9.19.0.56 (/p/libcudnn.so.9), PyTorch 2.11.0+cu130 (for CUDA 13.0)");
  GpuSoftware few;
  few.driver = "550.1";
  few.driver_cuda = 12040;
  REQUIRE(software_text(few) ==
          "driver 550.1 (CUDA up to 12.4), CUDA runtime not found, NCCL not found, cuDNN not found");
  few.nccl.path = "/opt/libnccl.so.2";
  few.torch = "2.9.0+cpu";
  REQUIRE_THAT(software_text(few), Catch::Contains("NCCL of unknown version (/opt/libnccl.so.2)") &&
                                       Catch::EndsWith("PyTorch 2.9.0+cpu (without CUDA)"));
}

TEST_CASE("versions that fit each other, or are not known, are no finding") {
  REQUIRE(judge_software(fitting()).empty());
  REQUIRE(judge_software({}).empty());
  GpuSoftware newer_minor = fitting();  // CUDA 13.1 on a driver for 13.0: minor version compatibility
  newer_minor.torch_cuda = "13.1";
  REQUIRE(judge_software(newer_minor).empty());
  GpuSoftware older = fitting();  // the driver is newer
  older.torch_cuda = "12.8";
  for (GpuLibrary* each : {&older.runtime, &older.nccl, &older.cudnn}) each->cuda = 12;
  REQUIRE(judge_software(older).empty());
  GpuSoftware unknown = fitting();
  unknown.driver_cuda = 0;
  for (GpuLibrary* each : {&unknown.runtime, &unknown.nccl, &unknown.cudnn}) each->cuda = 0;
  REQUIRE(judge_software(unknown).empty());
}

TEST_CASE("a program for a newer CUDA than the driver runs is a finding that names both") {
  GpuSoftware software = fitting();
  software.driver = "570.86.15";
  software.driver_cuda = 12080;
  REQUIRE(only(software) ==
          "PyTorch is for CUDA 13, but driver 570.86.15 runs CUDA 12 at most; update the driver, or install "
          "a build for CUDA 12");
  software.torch = software.torch_cuda = "";
  REQUIRE_THAT(only(software), Catch::StartsWith("the CUDA runtime is for CUDA 13, but driver 570.86.15"));
}

TEST_CASE("NCCL and cuDNN for another CUDA than the program's are findings with the package to install") {
  GpuSoftware software = fitting();
  software.nccl.cuda = 12;
  REQUIRE(
      only(software) ==
      "NCCL 2.28.9 is built for CUDA 12, but PyTorch is for CUDA 13; replace the package nvidia-nccl-cu12 "
      "by nvidia-nccl-cu13");
  software.nccl.cuda = 13;
  software.cudnn.cuda = 12;
  software.torch = software.torch_cuda = "";
  REQUIRE_THAT(only(software),
               Catch::StartsWith("cuDNN 9.19.0.56 is built for CUDA 12, but the CUDA runtime") &&
                   Catch::EndsWith("nvidia-cudnn-cu12 by nvidia-cudnn-cu13"));
}

TEST_CASE("a PyTorch without CUDA is a finding") {
  GpuSoftware software = fitting();
  software.torch = "2.9.0+cpu";
  software.torch_cuda = "";
  REQUIRE_THAT(only(software), Catch::StartsWith("PyTorch 2.9.0+cpu is built without CUDA"));
}

TEST_CASE("a variable of Python's source is read, and only that one") {
  const std::string source =
      "__all__ = ['cuda']\n__version__ = \"2.9\"\ncuda_x = '1'\ncuda: Optional[str] = '13.0'\nhip = None\n";
  REQUIRE(python_text(source, "__version__") == "2.9");
  REQUIRE(python_text(source, "cuda") == "13.0");
  REQUIRE(python_text(source, "hip").empty());
  REQUIRE(python_text(source, "xpu").empty());
  for (const char* odd : {"", "cuda", "cuda=", "cuda =", "cuda = '", "cuda: str", "cuda = None  # '1'"})
    REQUIRE(python_text(odd, "cuda").empty());
  REQUIRE(python_text("cuda = '13", "cuda") == "13");
}

TEST_CASE("libraries of pip packages are found in a virtual environment, with the packages' versions") {
  Python python;
  Python::add_torch(python.site, "2.11.0+cu130", "'13.0'");
  Python::add(python.site + "/nvidia/cu13/lib/libcudart.so.13");
  Python::add(python.site + "/nvidia_cuda_runtime-13.0.96.dist-info/METADATA");
  Python::add(python.site + "/nvidia/nccl/lib/libnccl.so.2");
  Python::add(python.site + "/nvidia_nccl_cu13-2.28.9.dist-info/METADATA");
  Python::add(python.site + "/nvidia/cudnn/lib/libcudnn.so.9");
  Python::add(python.site + "/nvidia_cudnn_cu12-9.10.2.21.dist-info/METADATA");
  GpuSoftware software = python.read();
  REQUIRE(software.torch == "2.11.0+cu130");
  REQUIRE(software.torch_cuda == "13.0");
  REQUIRE(software.runtime.path == python.site + "/nvidia/cu13/lib/libcudart.so.13");
  REQUIRE(software.runtime.version == "13.0.96");
  REQUIRE(software.runtime.cuda == 13);
  REQUIRE(software.nccl.version == "2.28.9");
  REQUIRE(software.nccl.cuda == 13);
  REQUIRE(software.cudnn.version == "9.10.2.21");
  REQUIRE(software.cudnn.cuda == 12);
  software.driver_cuda = 13000;
  REQUIRE_THAT(only(software),
               Catch::StartsWith("cuDNN 9.10.2.21 is built for CUDA 12, but PyTorch is for CUDA 13"));

  SECTION("and of two packages that wrote the same file the version is not known") {
    Python::add(python.site + "/nvidia_nccl_cu12-2.27.3.dist-info/METADATA");
    software = python.read();
    REQUIRE(software.nccl.version.empty());
    REQUIRE(software.nccl.cuda == 0);
  }
  SECTION("but not for a program that is no Python") {
    Python::add(python.directory.path() + "/program");
    for (const std::string& other :
         {python.directory.path() + "/program", std::string("/nonexistent/p"), std::string()}) {
      python.program = other;
      software = python.read();
      REQUIRE(software.torch.empty());
      for (const GpuLibrary* each : {&software.runtime, &software.nccl, &software.cudnn})
        REQUIRE_THAT(each->path, !Catch::Contains(python.site));
    }
  }
}

TEST_CASE("PYTHONPATH and the user's own packages go before the interpreter's, as they do in Python") {
  Python python;
  const std::string mine = python.directory.path() + "/home/.local/lib/python3.11/site-packages";
  Python::add_torch(python.site, "2.1.0", "'12.1'");
  REQUIRE(python.read().torch == "2.1.0");
  Python::add_torch(mine, "2.2.0", "'12.2'");
  REQUIRE(python.read().torch == "2.2.0");
  python.environment["PYTHONPATH"] = "/nonexistent:" + python.directory.path() + "/path";
  Python::add_torch(python.directory.path() + "/path", "2.3.0", "None");
  REQUIRE(python.read().torch == "2.3.0");
  REQUIRE(python.read().torch_cuda.empty());
  python.environment["PYTHONPATH"] = "";
  Python::add(python.prefix + "/pyvenv.cfg");  // a virtual environment does not see the user's own
  REQUIRE(python.read().torch == "2.1.0");
}

TEST_CASE("for a PyTorch of CUDA 12 the runtime of CUDA 13 is not its runtime") {
  Python python;
  Python::add_torch(python.site, "2.8.0+cu128", "'12.8'");
  Python::add(python.site + "/nvidia/cu13/lib/libcudart.so.13");
  Python::add(python.site + "/nvidia/cuda_runtime/lib/libcudart.so.12");
  Python::add(python.site + "/nvidia_cuda_runtime_cu12-12.8.90.dist-info/METADATA");
  const GpuSoftware software = python.read();
  REQUIRE(software.runtime.version == "12.8.90");
  REQUIRE(software.runtime.cuda == 12);
}
