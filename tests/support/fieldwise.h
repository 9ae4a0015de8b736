// SPDX-License-Identifier: Apache-2.0
// Tests compare the launcher's structs member by member; the launcher itself compares few of them, and those
// say so.
#pragma once

#include "rendezvous/base/fieldwise.h"

namespace muster::launcher {
using fieldwise::operator==;
}
