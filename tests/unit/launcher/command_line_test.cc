// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "launcher/cli/option_table.h"
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

CommandLine split(const Words& words) {
  auto line = split_command_line(words);
  REQUIRE_OK(line);
  return *line;
}

std::string error_of(const Words& words) {
  auto line = split_command_line(words);
  REQUIRE_FALSE(line);
  REQUIRE(line.error().code == ErrorCode::kInvalidArgument);
  return line.error().message;
}

std::pair<std::string, std::string> only_option(const Words& words) {
  const CommandLine line = split(words);
  REQUIRE(line.options.size() == 1);
  return {std::string(line.options[0].row->name), line.options[0].value};
}

}  // namespace

TEST_CASE("everything after the program belongs to the program") {
  const CommandLine line = split({"--nnodes", "2", "t.py", "--nnodes=3", "-m", "x"});
  REQUIRE(line.options.size() == 1);
  REQUIRE(line.program == "t.py");
  REQUIRE(line.arguments == Words{"--nnodes=3", "-m", "x"});
}

TEST_CASE("with -m the module is the program and a later -m is its argument") {
  const CommandLine line = split({"-m", "pkg.mod", "-m", "x"});
  REQUIRE(line.options.size() == 1);
  REQUIRE(line.program == "pkg.mod");
  REQUIRE(line.arguments == Words{"-m", "x"});
}

TEST_CASE("one double dash next to the program is swallowed") {
  REQUIRE(split({"t.py", "--", "--foo"}).arguments == Words{"--foo"});
  REQUIRE(split({"t.py", "a", "--", "b"}).arguments == Words{"a", "--", "b"});
  REQUIRE(split({"--", "t.py", "--", "b"}).arguments == Words{"--", "b"});
  REQUIRE(split({"--standalone", "--", "t.py", "b"}).arguments == Words{"b"});
  REQUIRE(split({"--", "-odd-name"}).program == "-odd-name");
}

TEST_CASE("dashes and underscores inside an option's name are the same") {
  using Pair = std::pair<std::string, std::string>;
  REQUIRE(only_option({"--nproc_per_node", "2", "t"}) == Pair{"nproc-per-node", "2"});
  REQUIRE(only_option({"--nproc-per_node=2", "t"}) == Pair{"nproc-per-node", "2"});
}

TEST_CASE("an unambiguous prefix of an option is enough") {
  using Pair = std::pair<std::string, std::string>;
  REQUIRE(only_option({"--nproc", "2", "t"}) == Pair{"nproc-per-node", "2"});
  REQUIRE(only_option({"--standa", "t"}) == Pair{"standalone", ""});
  REQUIRE_THAT(error_of({"--master", "x", "t"}),
               Catch::Contains("--master is ambiguous: --master-addr, --master-port"));
  REQUIRE_THAT(error_of({"--no", "t"}), Catch::Contains("ambiguous"));
}

TEST_CASE("an option of muster's own does not make torchrun's shortened names ambiguous") {
  using Pair = std::pair<std::string, std::string>;
  REQUIRE(only_option({"--v", "t"}) == Pair{"virtual-local-rank", ""});
  REQUIRE(only_option({"--no-", "t"}) == Pair{"no-python", ""});
  REQUIRE(only_option({"--local-r", "0", "t"}) == Pair{"local-ranks-filter", "0"});
  REQUIRE(only_option({"--no-u", "t"}) == Pair{"no-use-env", ""});
  REQUIRE(only_option({"--local-rank-a", "x", "t"}) == Pair{"local-rank-arg", "x"});
}

TEST_CASE("short options take their value attached, after a blank or in a cluster") {
  using Pair = std::pair<std::string, std::string>;
  REQUIRE(only_option({"-r3", "t"}) == Pair{"redirects", "3"});
  REQUIRE(only_option({"-r", "3", "t"}) == Pair{"redirects", "3"});
  const CommandLine line = split({"-mt3", "pkg"});
  REQUIRE(line.options.size() == 2);
  REQUIRE(line.options[0].row->name == "module");
  REQUIRE(line.options[1].value == "3");
}

TEST_CASE("an unknown option names the nearest one") {
  REQUIRE(error_of({"--max-restats=1", "t"}) ==
          "unknown option --max-restats; the nearest is --max-restarts (see muster --help)");
  REQUIRE_THAT(error_of({"--log_dri", "t"}), Catch::Contains("--log-dir"));
  REQUIRE(error_of({"--verbose", "t"}) == "unknown option --verbose (see muster --help)");
  REQUIRE_THAT(error_of({"-x", "t"}), Catch::Contains("unknown option -x"));
}

TEST_CASE("a missing value and a superfluous one are refused") {
  REQUIRE_THAT(error_of({"--nnodes"}), Catch::Contains("--nnodes needs a value"));
  REQUIRE_THAT(error_of({"--nnodes", "--standalone", "t"}), Catch::Contains("--nnodes needs a value"));
  REQUIRE_THAT(error_of({"--standalone=1", "t"}), Catch::Contains("--standalone takes no value"));
}

TEST_CASE("a negative number is a value, not an option") {
  REQUIRE(only_option({"--node-rank", "-1", "t"}).second == "-1");
}

TEST_CASE("no option is in the table twice and a variable is PET_ and the name") {
  std::set<std::string_view> names;
  for (const OptionRow& row : kOptionTable) REQUIRE(names.insert(row.name).second);
  REQUIRE((*find_option("nproc-per-node"))->variable() == "PET_NPROC_PER_NODE");
}
