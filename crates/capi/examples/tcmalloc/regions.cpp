// tcmalloc over memory of a depot: whatever malloc, new and the libraries of this program need comes
// from regions of the depot, and from the system once the depot has no more.
//
//     c++ regions.cpp $(pkg-config --cflags --libs pagedepot) -ltcmalloc_minimal
//
// This is the tcmalloc of gperftools, whose seam is SysAllocator. For that of
// github.com/google/tcmalloc see factory.cpp.
//
// tcmalloc never gives a region back, so the pages are held until the program ends. What it releases
// goes to the system by madvise, which a depot allows in anonymous pages that are held.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <gperftools/malloc_extension.h>
#include <new>
#include <pagedepot.h>
#include <thread>
#include <vector>

namespace {

constexpr size_t MIB = size_t{1} << 20;

void check(bool is_right, const char *what) {
    if (!is_right) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

// Regions of a depot. Called with tcmalloc's lock held, so it must not allocate: the depot does not.
class Regions : public SysAllocator {
  public:
    Regions(pagedepot_t *depot, SysAllocator *system)
        : depot_(depot), system_(system), page_(pagedepot_page_size(depot)) {}

    void *Alloc(size_t size, size_t *actual_size, size_t alignment) override {
        // Few large regions: each becomes one range of pages.
        const size_t bytes = round_up(size, REGION);
        const size_t align = alignment > page_ ? alignment / page_ : 1;
        void *region = nullptr;
        if (bytes / page_ <= PAGES_MAX && align <= PAGES_MAX)
            region = pagedepot_alloc_contiguous(depot_, uint32_t(bytes / page_), uint32_t(align), 0);
        if (region == nullptr) {
            from_system++;
            return system_->Alloc(size, actual_size, alignment);
        }
        if (actual_size != nullptr)
            *actual_size = bytes;
        from_depot++;
        return region;
    }

    int from_depot = 0, from_system = 0;

  private:
    static constexpr size_t REGION = 2 * MIB;
    static constexpr size_t PAGES_MAX = size_t{1} << 18;

    static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

    pagedepot_t *depot_;
    SysAllocator *system_;
    size_t page_;
};

// Allocates, fills and frees blocks; returns how many lay in the depot.
int churn(pagedepot_t *depot, int seed) {
    std::vector<unsigned char *> blocks(5000);
    int inside = 0;
    for (size_t at = 0; at < blocks.size(); at++) {
        const size_t bytes = 16 + (at * 37 + size_t(seed)) % 8192;
        blocks[at] = new unsigned char[bytes];
        inside += pagedepot_contains(depot, blocks[at]);
        std::memset(blocks[at], int(at) + seed, bytes);
    }
    for (size_t at = 0; at < blocks.size(); at++) {
        check(blocks[at][15] == (unsigned char)(int(at) + seed), "another block lies over this one");
        delete[] blocks[at];
    }
    return inside;
}

} // namespace

int main() {
    pagedepot_t *depot = pagedepot_new(256 * MIB, nullptr);
    check(depot != nullptr, depot == nullptr ? pagedepot_last_error() : "");
    MallocExtension *tcmalloc = MallocExtension::instance();
    SysAllocator *system = tcmalloc->GetSystemAllocator();
    check(system != nullptr, "this program's malloc is not tcmalloc");
    // Never destroyed: tcmalloc uses it until the very end.
    alignas(Regions) static char place[sizeof(Regions)];
    auto *regions = new (place) Regions(depot, system);
    tcmalloc->SetSystemAllocator(regions);

    int inside[4] = {};
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 4; seed++)
        threads.emplace_back([=, &inside] { inside[seed] = churn(depot, seed); });
    for (std::thread &thread : threads)
        thread.join();
    const int sum = inside[0] + inside[1] + inside[2] + inside[3];
    std::printf("%d of 20000 blocks lay in the depot, in %d regions\n", sum, regions->from_depot);
    check(sum > 10000, "tcmalloc made no use of the depot");

    // What is free in tcmalloc goes to the system, and comes back zeroed where it is used again.
    tcmalloc->ReleaseFreeMemory();
    check(churn(depot, 4) > 2500, "released regions were not used again");

    // More than the depot has: the rest comes from the system.
    std::vector<char *> large;
    for (int at = 0; at < 24; at++) {
        large.push_back(new char[16 * MIB]);
        large.back()[0] = 1;
    }
    check(regions->from_system > 0, "384 MiB came out of a depot of 256");
    for (char *block : large)
        delete[] block;
    std::printf("then %d regions came from the system; the depot holds %lld pages for tcmalloc\n",
                regions->from_system, (long long)pagedepot_validate(depot));
    return 0;
}
