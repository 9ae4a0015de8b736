// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/rank_assignment.h"

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {

using Json = nlohmann::json;

Result<std::vector<RankRange>> assign_ranks(std::span<const RoleInfo> nodes) {
  int world_size = 0;
  std::map<std::string, int> role_sizes;
  std::map<std::string, const RoleInfo*> programs;  // by role, of the first of its nodes that tells
  for (const RoleInfo& node : nodes) {
    if (node.nodes != nodes.front().nodes)
      return fail(ErrorCode::kMismatch,
                  fmt::format("node {} ({}) was started with --nnodes={}, node 0 with --nnodes={}",
                              node.node_rank, node.host, node.nodes, nodes.front().nodes));
    if (node.max_restarts != nodes.front().max_restarts)
      return fail(
          ErrorCode::kMismatch,
          fmt::format("node {} ({}) was started with --max-restarts={}, node 0 with --max-restarts={}",
                      node.node_rank, node.host, node.max_restarts, nodes.front().max_restarts));
    if (!node.program.empty()) {
      const RoleInfo& first = *programs.try_emplace(node.role, &node).first->second;
      if (first.program != node.program)
        return fail(
            ErrorCode::kMismatch,
            fmt::format("node {} ({}) runs {}, and node {} ({}) runs {}: have two jobs met here? Then "
                        "each needs its own --rdzv-id and --master-port; else give both the same "
                        "--rdzv-id",
                        node.node_rank, node.host, node.program, first.node_rank, first.host, first.program));
    }
    world_size += node.local_world_size;
    role_sizes[node.role] += node.local_world_size;
  }
  std::vector<RankRange> out;
  int base = 0;
  std::map<std::string, int> role_base;
  for (const RoleInfo& node : nodes) {
    int& in_role = role_base[node.role];
    out.push_back({base, world_size, in_role, role_sizes[node.role]});
    base += node.local_world_size;
    in_role += node.local_world_size;
  }
  return out;
}

std::string to_json(const RoleInfo& info) {
  return Json{{"role", info.role},
              {"rank", info.node_rank},
              {"local_world_size", info.local_world_size},
              {"nnodes", info.nodes},
              {"max_restarts", info.max_restarts},
              {"host", info.host},
              {"connection", info.connection},
              {"program", info.program}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RoleInfo> role_info_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    return RoleInfo{json.at("role"),       json.at("rank"),         json.at("local_world_size"),
                    json.at("nnodes"),     json.at("max_restarts"), json.at("host"),
                    json.at("connection"), json.at("program")};
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kProtocol, fmt::format("a node's description is not what muster writes ({}): {}",
                                                  error.what(), text.substr(0, 200)));
  }
}

std::string to_json(const RankRange& range) {
  return fmt::format("[{}, {}, {}, {}]", range.base_rank, range.world_size, range.role_base_rank,
                     range.role_world_size);
}

Result<RankRange> rank_range_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    return RankRange{json.at(0), json.at(1), json.at(2), json.at(3)};
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kProtocol, fmt::format("a rank assignment is not what muster writes ({}): {}",
                                                  error.what(), text.substr(0, 200)));
  }
}

}  // namespace muster::launcher
