// SPDX-License-Identifier: Apache-2.0
#include "launcher/cli/options.h"

#include <sstream>

#include "launcher/cli/option_table.h"
#include "launcher/job/exit_status.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

Options parse(const Words& words, const Environment& environment = {}) {
  auto options = parse_options(words, environment);
  REQUIRE_OK(options);
  return *options;
}

std::string error_of(const Words& words, const Environment& environment = {}) {
  auto options = parse_options(words, environment);
  REQUIRE_FALSE(options);
  REQUIRE(options.error().code == ErrorCode::kInvalidArgument);
  REQUIRE(options.error().message.find('\n') == std::string::npos);
  return options.error().message;
}

}  // namespace

TEST_CASE("without options the defaults are those of the table") {
  const Options options = parse({"t.py"});
  Options expected;
  expected.program = "t.py";
  REQUIRE(options == expected);
}

TEST_CASE("values are typed") {
  const Options options = parse({"--nnodes=4", "--node-rank=3", "--master-port=1234", "--max-restarts", "2",
                                 "--shutdown-timeout=1.5", "--log-dir=/x", "-t", "0:3",
                                 "--virtual-local-rank", "--no-python", "prog", "a"});
  REQUIRE(options.nnodes == "4");
  REQUIRE(options.node_rank == 3);
  REQUIRE(options.master_port == 1234);
  REQUIRE(options.max_restarts == 2);
  REQUIRE(options.shutdown_timeout_s == 1.5);
  REQUIRE(options.log_dir == "/x");
  REQUIRE(options.tee == "0:3");
  REQUIRE(options.virtual_local_rank);
  REQUIRE(options.no_python);
  REQUIRE(options.arguments == Words{"a"});
}

TEST_CASE("the help says which options have no variable") {
  for (const OptionRow& row : kOptionTable) {
    if (row.is(kRefused)) continue;
    const std::string help = full_help_text();
    const auto begin = help.find("except\n") + 7;
    const std::string said = ", " + help.substr(begin, help.find(".\n", begin) - begin) + ",";
    INFO(row.name);
    REQUIRE((said.find(" --" + std::string(row.name) + ",") != std::string::npos) == row.variable().empty());
  }
}

TEST_CASE("an error about an option that nobody typed names the variable") {
  const auto sourced = [](const Environment& environment, std::string message) {
    return with_source({ErrorCode::kInvalidArgument, std::move(message)},
                       parse({"--view=all", "t"}, environment))
        .message;
  };
  REQUIRE(sourced({{"PET_GPUS", "x"}}, "--gpus=x: no") == "--gpus=x: no (PET_GPUS=x in the environment)");
  REQUIRE(sourced({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "5"}}, "--node-rank=5 with --nnodes=2") ==
          "--node-rank=5 with --nnodes=2 (PET_NNODES=2, PET_NODE_RANK=5 in the environment)");
  REQUIRE(sourced({{"PET_VIEW", "x"}}, "--view=all: no") == "--view=all: no");
  REQUIRE(sourced({{"PET_BIND", "x"}}, "--binding=x: no") == "--binding=x: no");
  REQUIRE(error_of({"t"}, {{"PET_NNODES", ""}}) == "PET_NNODES= has no value; unset it, or give one");
  REQUIRE(error_of({"--nnodes=", "t"}) == "--nnodes needs a value");
}

TEST_CASE("the command line beats PET_ variables, which beat defaults") {
  const Environment environment{{"PET_NNODES", "3"}, {"PET_MAX_RESTARTS", "5"}};
  REQUIRE(parse({"t"}, environment).nnodes == "3");
  REQUIRE(parse({"--nnodes=2", "t"}, environment).nnodes == "2");
  REQUIRE(parse({"--nnodes=2", "t"}, environment).max_restarts == 5);
}

TEST_CASE("a flag's variable is an integer that is not zero") {
  REQUIRE(parse({"t"}, {{"PET_STANDALONE", "1"}}).standalone);
  REQUIRE_FALSE(parse({"t"}, {{"PET_STANDALONE", "0"}}).standalone);
  REQUIRE_THAT(error_of({"t"}, {{"PET_STANDALONE", "true"}}),
               Catch::Equals("PET_STANDALONE=true: 1 turns it on, 0 off"));
}

TEST_CASE("a bad value is named together with where it came from") {
  REQUIRE_THAT(error_of({"--max-restarts=x", "t"}), Catch::StartsWith("--max-restarts=x"));
  REQUIRE_THAT(error_of({"t"}, {{"PET_MAX_RESTARTS", "x"}}), Catch::StartsWith("PET_MAX_RESTARTS=x"));
  REQUIRE(error_of({"--max-restarts=-1", "t"}) == "--max-restarts=-1: not a whole number, 0 to 2147483647");
  REQUIRE(error_of({"--master-port=65536", "t"}) == "--master-port=65536: not a whole number, 0 to 65535");
  REQUIRE(error_of({"--monitor-interval=0", "t"}) == "--monitor-interval=0: not a number of seconds above 0");
  REQUIRE(error_of({"--shutdown-timeout=x", "t"}) ==
          "--shutdown-timeout=x: not a number of seconds, 0 to 1000000");
  REQUIRE_THAT(error_of({"-np", "4", "t"}), Catch::Contains("--nproc-per-node=N"));
  REQUIRE_THAT(error_of({"--master-port=70000", "t"}), Catch::StartsWith("--master-port=70000"));
}

TEST_CASE("the last of repeated options wins") {
  REQUIRE(parse({"--nnodes=2", "--nnodes=5", "t"}).nnodes == "5");
}

TEST_CASE("options without effect are accepted") {
  REQUIRE(
      parse({"--monitor-interval=5", "--start-method=fork", "--event-log-handler=console", "t"}).program ==
      "t");
}

TEST_CASE("options without effect are held to torchrun's values") {
  REQUIRE_THAT(error_of({"--start-method=bogus", "t"}), Catch::StartsWith("--start-method=bogus"));
  REQUIRE_THAT(error_of({"--monitor-interval=0", "t"}), Catch::StartsWith("--monitor-interval=0"));
  REQUIRE_THAT(error_of({"--event-log-handler=bogus", "t"}), Catch::StartsWith("--event-log-handler=bogus"));
  REQUIRE(parse({"t"}, {{"PET_START_METHOD", "bogus"}}).program == "t");
}

TEST_CASE("an empty text is a value where torchrun has one") {
  REQUIRE(parse({"--role=", "t"}).role.empty());
  REQUIRE_FALSE(parse({"--log-dir=", "t"}).log_dir);
  REQUIRE(parse({"--duplicate-stdout-filters=", "t"}).duplicate_stdout_filters == "");
  REQUIRE(parse({"t"}, {{"PET_DUPLICATE_STDERR_FILTERS", ""}}).duplicate_stderr_filters == "");
  REQUIRE_THAT(error_of({"--nnodes=", "t"}), Catch::Contains("--nnodes needs a value"));
}

TEST_CASE("options that are not supported say what to use instead") {
  REQUIRE_THAT(error_of({"--logs-specs=x", "t.py"}), Catch::Contains("--log-dir, -r and -t"));
}

TEST_CASE("a missing program is a usage error") {
  REQUIRE_THAT(error_of({}), Catch::Contains("no program given"));
  REQUIRE_THAT(error_of({"--standalone"}), Catch::Contains("no program given"));
}

TEST_CASE("help needs no program and no valid environment") {
  REQUIRE(parse({"--help"}, {{"PET_MAX_RESTARTS", "x"}}).help);
  REQUIRE(parse({"-h"}).help);
  REQUIRE(parse({"--version"}).version);
  REQUIRE(parse({"--help-all"}).help_all);
}

TEST_CASE("the help is one screen, and each option that most people use has a line") {
  const std::string text = help_text();
  int lines = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line); ++lines) {
    INFO(line);
    REQUIRE(line.size() <= 100);
  }
  REQUIRE(lines <= 40);
  for (const OptionRow& row : kOptionTable)
    REQUIRE((text.find("--" + std::string(row.name) + (row.takes_value() ? "=" : " ")) !=
             std::string::npos) == row.is(kCommon));
}

TEST_CASE("the full help lists every option and every exit code") {
  const std::string text = full_help_text();
  for (const OptionRow& row : kOptionTable) REQUIRE_THAT(text, Catch::Contains("--" + std::string(row.name)));
  for (const ExitCode& row : kExitCodes) REQUIRE_THAT(text, Catch::Contains(std::string(row.meaning)));
}

TEST_CASE("what a shell is told names every option that is not refused") {
  REQUIRE(parse({"--print-completion=zsh"}).print_completion == "zsh");
  for (const char* shell : {"bash", "zsh", "fish", "tcsh"}) {
    const auto script = completion_script(shell);
    REQUIRE_OK(script);
    for (const OptionRow& row : kOptionTable)
      REQUIRE((script->find(row.name) != std::string::npos) == !row.is(kRefused));
  }
  REQUIRE_FALSE(completion_script("ksh"));
}

TEST_CASE("what was given comes back as words that say the same") {
  const Options options =
      parse({"--nnodes=2", "-m", "--role=", "--rdzv-conf=a=1", "mod"}, {{"PET_BIND", "core"}});
  const auto words = option_words(options, [](std::string_view name) { return name != "nnodes"; });
  REQUIRE(words == Words{"--bind=core", "--module", "--rdzv-conf=a=1", "--role="});
}

TEST_CASE("options are chosen by a trait, with their values") {
  const Options options = with_traits(parse({"--nnodes=2", "--node-rank=1", "-t3", "t"}), kForDoctor);
  REQUIRE(options.nnodes == "2");
  REQUIRE(options.node_rank == 1);
  REQUIRE(options.tee == "0");
  REQUIRE(options.given.size() == 2);
}
