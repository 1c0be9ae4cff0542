// The header from C++: pages with owners, from two threads.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <pagedepot.h>
#include <thread>
#include <vector>

struct Delete {
    void operator()(pagedepot_t *depot) const { pagedepot_delete(depot); }
};
struct Free {
    pagedepot_t *depot;
    void operator()(void *page) const {
        if (pagedepot_free(depot, page, 0) != 0)
            std::abort();
    }
};
using Page = std::unique_ptr<void, Free>;

int main() {
    std::unique_ptr<pagedepot_t, Delete> depot(pagedepot_new(16 << 20, nullptr));
    if (!depot) {
        std::fprintf(stderr, "%s\n", pagedepot_last_error());
        return 1;
    }
    std::vector<Page> pages;
    for (int i = 0; i < 1000; i++) {
        Page page(pagedepot_alloc(depot.get(), 0), Free{depot.get()});
        std::memset(page.get(), i, pagedepot_page_size(depot.get()));
        pages.push_back(std::move(page));
    }
    std::thread([&] { pages.clear(); }).join();
    return pagedepot_validate(depot.get()) == 0 ? 0 : 1;
}
