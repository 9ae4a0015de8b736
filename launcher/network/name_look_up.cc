// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/name_look_up.h"

#include <chrono>
#include <utility>

namespace muster::launcher {
namespace {

namespace asio = boost::asio;
constexpr std::chrono::seconds kPatience{5};

}  // namespace

NameLookUp::NameLookUp(asio::io_context& io) : resolver_(io), timer_(io), found_(std::make_shared<Found>()) {}

NameLookUp::~NameLookUp() {
  *found_ = {};
}

void NameLookUp::start(const std::string& host, Found found) {
  *found_ = std::move(found);
  // Whichever comes first: the answer, or the end of the patience.
  const auto tell = [this, once = found_](const std::vector<std::string>& addresses) {
    const Found call = std::exchange(*once, {});
    if (!call) return;
    timer_.cancel();
    call(addresses);
  };
  resolver_.async_resolve(host, "",
                          [tell](const auto& error, const asio::ip::tcp::resolver::results_type& entries) {
                            std::vector<std::string> addresses;
                            if (!error)
                              for (const auto& entry : entries)
                                addresses.push_back(entry.endpoint().address().to_string());
                            tell(addresses);
                          });
  timer_.expires_after(kPatience);
  timer_.async_wait([tell](const auto& error) {
    if (!error) tell({});
  });
}

}  // namespace muster::launcher
