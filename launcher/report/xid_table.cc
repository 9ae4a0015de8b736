// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/xid_table.h"

#include <algorithm>
#include <array>

namespace muster::launcher {
namespace {

struct Entry {
  int number = 0;
  std::string_view meaning = {};
  bool hardware = false;  // memory, NVLink, bus, the GPU's own processors, power: not the program's fault
};

constexpr std::array kEntries = {
    Entry{8, "the GPU stopped processing"},
    Entry{11, "corrupt or invalid commands from the program"},
    Entry{13, "exception in the compute engine, often an access out of bounds"},
    Entry{31, "memory page fault, often an address of the program's that is not mapped"},
    Entry{32, "corrupt or invalid commands from the program"},
    Entry{38, "error of the driver's firmware"},
    Entry{43, "the program's work was ended after an error of its own"},
    Entry{45, "cleanup after another error, or after a killed process"},
    Entry{48, "uncorrectable memory error (double bit ECC)", true},
    Entry{54, "auxiliary power is not connected", true},
    Entry{61, "breakpoint of an internal micro-controller", true},
    Entry{62, "halt of an internal micro-controller", true},
    Entry{63, "a memory page was retired or a row remapped", true},
    Entry{64, "a memory page could not be retired or a row not remapped", true},
    Entry{68, "exception in the video processor"},
    Entry{69, "error in the graphics engine's class"},
    Entry{74, "NVLink error", true},
    Entry{79, "GPU has fallen off the bus", true},
    Entry{92, "high rate of corrected memory errors", true},
    Entry{94, "contained memory error: one program is lost", true},
    Entry{95, "uncontained memory error: all programs on the GPU are lost", true},
    Entry{109, "timeout of a context switch"},
    Entry{110, "security fault"},
    Entry{119, "the GPU's system processor (GSP) does not answer", true},
    Entry{120, "error of the GPU's system processor (GSP)", true},
    Entry{121, "error of the link between chips (C2C)"},
    Entry{137, "NVLink privilege error: a peer's access to memory that is not mapped"},
    Entry{140, "unrecovered memory error (ECC)", true},
    Entry{143, "the GPU could not be initialised"},
    Entry{144, "NVLink error"},
    Entry{145, "NVLink error"},
    Entry{146, "NVLink error"},
    Entry{147, "NVLink error"},
    Entry{148, "NVLink error"},
    Entry{149, "NVLink error", true},
    Entry{150, "NVLink error"},
    Entry{154, "the driver asks for another way to recover the GPU (nvidia-smi -q)"},
    Entry{156, "a resource of the GPU was retired"},
    Entry{157, "a resource of the GPU could not be retired"},
    Entry{158, "fatal timeout of the GPU"},
    Entry{171, "uncorrectable error in the GPU's memory (DRAM)", true},
    Entry{172, "uncorrectable error within the GPU (SRAM)", true},
};
static_assert(std::is_sorted(kEntries.begin(), kEntries.end(),
                             [](const Entry& a, const Entry& b) { return a.number < b.number; }));

Entry find(int number) {
  const auto* const found =
      std::lower_bound(kEntries.begin(), kEntries.end(), number,
                       [](const Entry& entry, int wanted) { return entry.number < wanted; });
  return found != kEntries.end() && found->number == number ? *found : Entry{};
}

}  // namespace

std::string_view meaning_of_xid(int number) {
  return find(number).meaning;
}

bool is_hardware_xid(int number) {
  return find(number).hardware;
}

}  // namespace muster::launcher
