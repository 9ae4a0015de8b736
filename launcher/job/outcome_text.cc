// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/outcome_text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {

using Json = nlohmann::json;

std::string to_json(const AttemptOutcome& outcome) {
  const auto* notice = std::get_if<FailureNotice>(&outcome);
  if (notice == nullptr) return R"({"ok": true})";
  return Json{{"ok", false},
              {"node", notice->node_rank},
              {"host", notice->host},
              {"rank", notice->rank},
              {"exit_code", notice->exit_code},
              {"text", notice->text},
              {"restart", notice->restart},
              {"lost_node", notice->lost_node},
              {"epoch", notice->reached.epoch},
              {"step", notice->reached.step}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<AttemptOutcome> outcome_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (json.at("ok")) return AllSucceeded{};
    FailureNotice out{json.at("node"),      json.at("host"), json.at("rank"),
                      json.at("exit_code"), json.at("text"), json.at("restart")};
    out.lost_node = json.value("lost_node", -1);
    out.reached = {json.value("epoch", std::int64_t{-1}), json.value("step", std::int64_t{-1})};
    return out;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kProtocol, fmt::format("an outcome is not what muster writes ({}): {}",
                                                  error.what(), text.substr(0, 200)));
  }
}

}  // namespace muster::launcher
