// SPDX-License-Identifier: Apache-2.0
// RunPath: what Python executes under --run-path, given with -c; its arguments are the script and the
// script's. It does what torchrun's entry point does there: the script is __main__, an exception is written
// to TORCHELASTIC_ERROR_FILE as @record does it, SystemExit(0) is success. Standard library only: a script
// that needs no PyTorch does not wait for it. No '$': arguments are put through substitution.h. Source:
// torch/distributed/run.py (run_script_path) and elastic/multiprocessing/errors.
#pragma once

#include <string_view>

namespace muster::launcher {

inline constexpr std::string_view kRunPathProgram = R"(import faulthandler, runpy, sys
def record(error):
    import json, os, time, traceback
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    info = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
    message = {"message": type(error).__name__ + ": " + str(error), "extraInfo": info}
    with open(path, "w") as file:
        json.dump({"message": message}, file)
def main():
    try:
        faulthandler.enable(all_threads=True)
    except Exception as error:
        print("faulthandler:", error, file=sys.stderr)
    del sys.argv[0]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code != 0:
            raise
    except Exception as error:
        record(error)
        raise
main()
)";

}  // namespace muster::launcher
