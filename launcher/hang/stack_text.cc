// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/stack_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/text/line_splitter.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMostThreads = 256;
constexpr std::size_t kMostFrames = 64;

/// Up to where its arguments begin: "ns::f<int (*)()>(...)" and "operator()" keep theirs.
std::string_view without_arguments(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>' && depth > 0) --depth;
    if (text[i] == '(' && depth == 0 && i > 0 && !text.substr(0, i).ends_with("operator"))
      return text.substr(0, text[i - 1] == ' ' ? i - 1 : i);
  }
  return text;
}

/// "__GI___libc_read" is what a program calls read.
std::string_view plain_name(std::string_view name) {
  if (name.starts_with("__GI_")) name.remove_prefix(5);
  if (name.starts_with("__libc_") && !name.starts_with("__libc_start")) name.remove_prefix(7);
  return name;
}

/// "#3  0x00007f in read () from /lib/libc.so.6" is read.
std::string frame_of(std::string_view line) {
  line.remove_prefix(1);
  const auto digits = line.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return {};
  line.remove_prefix(digits);
  const auto skip_blanks = [&line] {
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  };
  skip_blanks();
  if (line.starts_with("0x")) {
    line.remove_prefix(std::min(line.find(' '), line.size()));
    skip_blanks();
    if (line.starts_with("in ")) line.remove_prefix(3);
  }
  return one_clean_line(plain_name(without_arguments(line)));
}

bool is_main(StackTool tool, std::string_view title) {
  return tool == StackTool::kPySpy ? title.find("MainThread") != std::string_view::npos
                                   : title.starts_with("Thread 1 ");
}

}  // namespace

std::string_view name_of(StackTool tool) {
  return tool == StackTool::kPySpy ? "py-spy" : "gdb";
}

std::vector<std::string> arguments_of(StackTool tool, const std::string& path, int pid) {
  const std::string number = std::to_string(pid);
  if (tool == StackTool::kPySpy) return {path, "dump", "--pid", number};
  // Nobody's start-up files, no questions, no downloads of symbols, and all threads whatever their names.
  return {path,   "-nx",
          "-nw",  "-batch",
          "-iex", "set debuginfod enabled off",
          "-iex", "set auto-load no",
          "-iex", "set python print-stack none",
          "-ex",  "set width 0",
          "-ex",  "set print frame-arguments none",
          "-ex",  "set print elements 32",
          "-ex",  fmt::format("thread apply all -ascending backtrace {}", kMostFrames),
          "-p",   number};
}

std::vector<ThreadStack> parse_stacks(StackTool tool, std::span<const std::string> lines) {
  std::vector<ThreadStack> out;
  for (const std::string& line : lines) {
    if (line.starts_with("Thread ")) {
      if (out.size() == kMostThreads) break;
      out.push_back({one_clean_line(line), {}});
      continue;
    }
    std::string frame;
    if (tool == StackTool::kPySpy) {
      if (line.starts_with("    ") && line.size() > 4 && line[4] != ' ') frame = one_clean_line(line);
    } else if (line.starts_with('#')) {
      frame = frame_of(line);
    }
    if (frame.empty()) continue;
    if (out.empty()) out.push_back({});  // of a process with one thread some say no more
    if (out.back().functions.size() < kMostFrames) out.back().functions.push_back(std::move(frame));
  }
  std::erase_if(out, [](const ThreadStack& stack) { return stack.functions.empty(); });
  const auto main =
      std::ranges::find_if(out, [tool](const ThreadStack& stack) { return is_main(tool, stack.title); });
  if (main != out.end()) std::rotate(out.begin(), main, main + 1);
  return out;
}

std::string problem_in(std::span<const std::string> lines, std::string_view otherwise) {
  static constexpr std::array kWords = {"not permitted", "ermission denied", "ptrace", "No such process",
                                        "rror"};
  for (const std::string_view word : kWords)
    for (const std::string& line : lines)
      if (line.find(word) != std::string::npos)
        if (std::string text = one_clean_line(line); !text.empty()) return text;
  return std::string(otherwise);
}

std::vector<std::string> relevant_frames(std::span<const std::string> functions, std::size_t most) {
  static constexpr std::array kLast = {"main",   "start_thread",      "clone3",
                                       "clone",  "__libc_start_main", "__libc_start_call_main",
                                       "_start", "Py_BytesMain",      "Py_RunMain"};
  std::vector<std::string> out;
  for (const std::string& function : functions) {
    if (out.size() == most) break;
    if (function != "??" && (out.empty() || out.back() != function)) out.push_back(function);
    if (std::ranges::find(kLast, function) != kLast.end()) break;
  }
  return out;
}

}  // namespace muster::launcher
