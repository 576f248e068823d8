// From C++: ranks that are threads, with owners that free what they hold.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "weft.h"

namespace {

void check(weft_status status) {
  if (status != WEFT_OK) throw std::runtime_error(weft_last_error());
}

struct Free {
  void operator()(weft_comm *comm) const { weft_comm_free(comm); }
  void operator()(weft_request *request) const { weft_request_free(request); }
};

double sum(weft_comm *raw, int rank) {
  std::unique_ptr<weft_comm, Free> comm(raw);
  std::vector<double> values(100, rank + 1);
  weft_request *started = nullptr;
  check(weft_all_reduce_start(comm.get(), values.data(), values.data(), values.size(), WEFT_F64, WEFT_SUM, &started));
  std::unique_ptr<weft_request, Free> request(started);
  check(weft_request_wait(request.get()));
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

int main() {
  constexpr int kRanks = 4;
  std::vector<weft_comm *> comms(kRanks);
  check(weft_comm_threads(kRanks, nullptr, comms.data()));
  std::vector<double> sums(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { sums[rank] = sum(comms[rank], rank); });
  }
  for (auto &thread : threads) thread.join();
  for (double each : sums) {
    if (each != 1000) return EXIT_FAILURE;
  }
  try {
    check(weft_barrier(nullptr));
  } catch (const std::runtime_error &error) {
    std::cout << error.what() << std::endl;
    return EXIT_SUCCESS;
  }
  return EXIT_FAILURE;
}
