// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/device_choice.h"

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

std::vector<Gpu> node() {
  std::vector<Gpu> out(4);
  const char* uuids[] = {"GPU-aaaa", "GPU-ab11", "GPU-cccc", "GPU-dddd"};
  for (int i = 0; i < 4; ++i) {
    out[static_cast<std::size_t>(i)].index = i;
    out[static_cast<std::size_t>(i)].uuid = uuids[i];
  }
  out[3].slices = {"MIG-1", "MIG-2"};
  return out;
}

using Names = std::vector<std::string>;

Names entries(const std::vector<Device>& devices) {
  Names out;
  for (const Device& device : devices) out.push_back(device.entry);
  return out;
}

Names chosen(const char* option, std::optional<std::string_view> variable = {}, bool oversubscribe = false) {
  const auto devices = chosen_devices(node(), option, variable, oversubscribe);
  REQUIRE_OK(devices);
  return entries(*devices);
}

std::string refusal(const char* option, std::optional<std::string_view> variable = {}) {
  const auto devices = chosen_devices(node(), option, variable, false);
  REQUIRE_FALSE(devices);
  REQUIRE(devices.error().code == ErrorCode::kInvalidArgument);
  return devices.error().message;
}

}  // namespace

TEST_CASE("GPUs are chosen by number, range, UUID or the beginning of one, in the order given") {
  REQUIRE(chosen("3,0") == Names{"3", "0"});
  REQUIRE(chosen("1-2, 0") == Names{"1", "2", "0"});
  REQUIRE(chosen("GPU-cccc,GPU-aa") == Names{"GPU-cccc", "GPU-aa"});
  REQUIRE(chosen("MIG-2,MIG-1") == Names{"MIG-2", "MIG-1"});
  const auto devices = chosen_devices(node(), "GPU-dddd,1", {}, false);
  REQUIRE((*devices)[0].gpu == 3);
  REQUIRE((*devices)[1].gpu == 1);
}

TEST_CASE("what names no GPU is refused with the list of those that are there") {
  REQUIRE_THAT(refusal("4"), Catch::Contains("4 names no GPU; this node has 0 GPU-aaaa, 1 GPU-ab11"));
  REQUIRE_THAT(refusal("GPU-a"), Catch::Contains("GPU-a names no GPU"));  // two begin so
  REQUIRE_THAT(refusal("0,x"), Catch::Contains("'x' is neither a number"));
  REQUIRE_THAT(refusal("0,,1"), Catch::Contains("'' is neither a number"));
  REQUIRE_THAT(refusal("2-1"), Catch::Contains("nor a range"));
  REQUIRE_THAT(refusal("MIG-3"), Catch::Contains("MIG-3 names no GPU"));
  const auto none = chosen_devices({}, "0", {}, false);
  REQUIRE_THAT(none.error().message, Catch::Contains("this node has no GPU"));
}

TEST_CASE("the same GPU twice is refused, under whatever names, unless it is to be shared") {
  REQUIRE_THAT(refusal("0,0"), Catch::Contains("--oversubscribe"));
  REQUIRE_THAT(refusal("1,GPU-ab"), Catch::Contains("the same GPU"));
  REQUIRE(chosen("0,0,1", {}, true) == Names{"0", "1"});
}

TEST_CASE("CUDA_VISIBLE_DEVICES limits what may be chosen") {
  REQUIRE(chosen("3", "2,3") == Names{"3"});
  REQUIRE(chosen("GPU-dddd", "3") == Names{"GPU-dddd"});
  REQUIRE(chosen("MIG-1", "3") == Names{"MIG-1"});
  REQUIRE_THAT(refusal("0", "2,3"), Catch::Contains("0 is not among CUDA_VISIBLE_DEVICES=2,3"));
  REQUIRE_THAT(refusal("MIG-2", "MIG-1"), Catch::Contains("not among"));
}

TEST_CASE("without --gpus the devices are those that CUDA would show") {
  const auto visible = [](std::optional<std::string_view> variable) {
    return entries(visible_devices(node(), variable));
  };
  REQUIRE(visible({}) == Names{"0", "1", "2", "3"});
  REQUIRE(visible("") == Names{});
  REQUIRE(visible("2, 0") == Names{"2", "0"});
  REQUIRE(visible("1,-1,2") == Names{"1"});
  REQUIRE(visible("1,1") == Names{});
  REQUIRE(visible("GPU-c") == Names{"GPU-c"});
}

TEST_CASE("fewer GPUs than workers are told, and what is not known is not") {
  const auto shortage = [](std::optional<std::string_view> variable, int workers) {
    return device_shortage(node(), variable, workers);
  };
  REQUIRE(shortage({}, 4).empty());
  REQUIRE(shortage({}, 5) == "5 workers for 4 GPUs");
  REQUIRE(shortage("2,3", 2).empty());
  REQUIRE(shortage("2", 2) == "2 workers for 1 GPU in CUDA_VISIBLE_DEVICES=2");
  REQUIRE(shortage("1,7", 2) == "2 workers for 1 GPU in CUDA_VISIBLE_DEVICES=1,7");
  REQUIRE(shortage("1, 1", 2) == "GPU 1 is named twice in CUDA_VISIBLE_DEVICES=1, 1");
  REQUIRE(shortage("1,1", 1) == "1 worker for 0 GPUs in CUDA_VISIBLE_DEVICES=1,1");
  REQUIRE(shortage("1,GPU-ab11", 2) == "2 workers for 0 GPUs in CUDA_VISIBLE_DEVICES=1,GPU-ab11");
  REQUIRE(shortage("", 2).empty());
  REQUIRE(shortage("MIG-1,MIG-2", 2).empty());
  // Without the driver's word only the list itself can be judged.
  REQUIRE(device_shortage({}, "0", 2).empty());
  REQUIRE(device_shortage(std::vector<Gpu>(1), "GPU-aaaa,GPU-bbbb", 2).empty());
  REQUIRE(device_shortage({}, "3,3", 2) == "GPU 3 is named twice in CUDA_VISIBLE_DEVICES=3,3");
}

TEST_CASE("the driver is asked where there may be too few GPUs only") {
  REQUIRE_FALSE(may_be_short({}, 8, 8));
  REQUIRE(may_be_short({}, 7, 8));
  REQUIRE_FALSE(may_be_short("0,1", 0, 2));
  REQUIRE(may_be_short("0,1", 8, 3));
  REQUIRE(may_be_short("0,0", 8, 2));
}

TEST_CASE("CUDA_VISIBLE_DEVICES counts up to the first entry that names no GPU") {
  const auto count = [](std::optional<std::string_view> variable) { return count_visible(node(), variable); };
  REQUIRE(count(std::nullopt) == 4);
  REQUIRE(count("") == 0);
  REQUIRE(count("-1") == 0);
  REQUIRE(count("2,0") == 2);
  REQUIRE(count("0,-1,1") == 1);
  REQUIRE(count("0,4,1") == 1);
  REQUIRE(count("1,1") == 0);
  REQUIRE(count("1,GPU-ab11") == 0);
  REQUIRE(count("GPU-cccc, GPU-aa") == 2);
  REQUIRE(count("GPU-a") == 0);  // ambiguous
  REQUIRE(count("MIG-1,MIG-2,MIG-3") == 2);
  REQUIRE(count_visible({}, "0,1") == 0);
  REQUIRE(count_visible({}, "MIG-1") == 0);
}

TEST_CASE("UUIDs that nobody could read are counted as the driver would, and not chosen") {
  std::vector<Gpu> unread(2);
  unread[1].index = 1;
  REQUIRE(count_visible(unread, "1,0") == 2);
  REQUIRE(count_visible(unread, "GPU-x,GPU-y") == 2);
  REQUIRE(count_visible(unread, "MIG-x,MIG-y,MIG-z") == 3);
  REQUIRE(count_visible(unread, "GPU-x,GPU-x") == 0);
  REQUIRE(visible_devices(unread, "GPU-x").empty());
  REQUIRE_FALSE(chosen_devices(unread, "GPU-x", std::nullopt, false));
}

TEST_CASE("what CUDA_VISIBLE_DEVICES means for the local ranks is one line") {
  const auto mapping = [](std::optional<std::string_view> variable, int workers, bool one_each = false) {
    return mapping_text(node(), variable, workers, one_each);
  };
  REQUIRE(
      mapping({}, 4) ==
      "CUDA_VISIBLE_DEVICES is not set: local rank 0,1,2,3 uses nvidia-smi's GPU 0,1,2,3 as cuda:0,1,2,3");
  REQUIRE(mapping("2,3", 2) ==
          "CUDA_VISIBLE_DEVICES=2,3: local rank 0,1 uses nvidia-smi's GPU 2,3 as cuda:0,1");
  REQUIRE(mapping("GPU-cccc, 0", 2) ==
          "CUDA_VISIBLE_DEVICES=GPU-cccc, 0: local rank 0,1 uses nvidia-smi's GPU 2,0 as cuda:0,1");
  REQUIRE(mapping("3,1,0", 1) ==
          "CUDA_VISIBLE_DEVICES=3,1,0: local rank 0 uses nvidia-smi's GPU 3 as cuda:0");

  SECTION("with what CUDA ignores of it") {
    REQUIRE(
        mapping("1,7,0", 1) ==
        "CUDA_VISIBLE_DEVICES=1,7,0: local rank 0 uses nvidia-smi's GPU 1 as cuda:0; CUDA ignores '7', which "
        "names no GPU of this node, and what follows it");
    REQUIRE(mapping("-1", 1) ==
            "CUDA_VISIBLE_DEVICES=-1: the workers see no GPU; CUDA ignores '-1', which names no GPU of this "
            "node, and what follows it");
    REQUIRE(mapping("1,GPU-ab11", 1) ==
            "CUDA_VISIBLE_DEVICES=1,GPU-ab11: the workers see no GPU; a GPU is named twice, and CUDA shows "
            "none then");
    REQUIRE(mapping("", 1) == "CUDA_VISIBLE_DEVICES=: the workers see no GPU");
  }
  SECTION("with the workers for which there is none") {
    REQUIRE(
        mapping("2,3", 4) ==
        "CUDA_VISIBLE_DEVICES=2,3: local rank 0,1 uses nvidia-smi's GPU 2,3 as cuda:0,1; local ranks from 2 "
        "on have no GPU of their own");
    REQUIRE_THAT(mapping({}, 5), Catch::EndsWith("; local ranks from 4 on have no GPU of their own"));
  }
  SECTION("with --virtual-local-rank") {
    REQUIRE(mapping("2,3", 2, true) ==
            "CUDA_VISIBLE_DEVICES=2,3: local rank 0,1 uses nvidia-smi's GPU 2,3 as cuda:0");
    // With --oversubscribe: it is refused otherwise.
    REQUIRE(mapping("2,3", 4, true) ==
            "CUDA_VISIBLE_DEVICES=2,3: local rank 0,1,2,3 uses nvidia-smi's GPU 2,3,2,3 as cuda:0");
    REQUIRE(mapping("2,7", 1, true).empty());  // CUDA never gets the list
  }
  SECTION("with MIG slices, of which CUDA shows one") {
    REQUIRE(mapping("MIG-2,MIG-1", 2) ==
            "CUDA_VISIBLE_DEVICES=MIG-2,MIG-1: local rank 0 uses nvidia-smi's GPU 3 (MIG-2) as cuda:0; local "
            "ranks from 1 on have no GPU of their own; CUDA shows the first MIG slice only, "
            "--virtual-local-rank gives each worker its own");
    REQUIRE(mapping("MIG-2,MIG-1", 2, true) ==
            "CUDA_VISIBLE_DEVICES=MIG-2,MIG-1: local rank 0,1 uses nvidia-smi's GPU 3 (MIG-2),3 (MIG-1) as "
            "cuda:0");
  }
  SECTION("and nothing where the driver did not tell the names that it uses") {
    REQUIRE(mapping_text(std::vector<Gpu>(1), "GPU-x", 1, false).empty());
    REQUIRE(mapping_text(std::vector<Gpu>(1), "0", 1, false) ==
            "CUDA_VISIBLE_DEVICES=0: local rank 0 uses nvidia-smi's GPU 0 as cuda:0");
  }
}
