// SPDX-License-Identifier: Apache-2.0
// end_on_fatal_errors: what the event loop asks of the kernel and does not get (descriptors, memory) comes as
// an exception that nobody can go on from. muster then says so in a line and is gone with 71, as if it were
// killed: the guardian sees to the workers. Any other exception is a fault of muster's and dumps core. Called
// by main, once, before anything else.
#pragma once

namespace muster::launcher {

void end_on_fatal_errors();

}  // namespace muster::launcher
