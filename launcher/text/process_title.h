// SPDX-License-Identifier: Apache-2.0
// set_process_title: what ps, top and pkill -f show of a process that muster forked for itself. Without it
// the copy of muster's command line is there, and `pkill -9 -f train.py` ends the guardian together with
// those it guards; nor is muster's name in the title, for `pkill -9 muster`. Called by such a process after
// fork, with one thread. Writes over its own copy of argv; where that is not to be found (no /proc) the short
// name alone is set.
#pragma once

namespace muster::launcher {

/// `title` as long as the command line has room; its first 15 characters are the short name.
void set_process_title(const char* title);

}  // namespace muster::launcher
