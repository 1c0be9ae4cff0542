// The tcmalloc of github.com/google/tcmalloc over memory of a depot: what malloc, new and the
// libraries of this program need comes from pages of the depot, and from the system once the depot
// has no more.
//
//     c++ -std=c++17 factory.cpp $(pkg-config --cflags --libs pagedepot) $TCMALLOC
//
// where TCMALLOC has the folders of its headers and of Abseil's, and both libraries.
//
// This tcmalloc chooses its addresses itself, because some of their bits say what lies there. It
// reserves a region of 1 GiB, and AddressRegion::Alloc puts memory behind as much of it as is
// needed. So the depot is a memory file (PAGEDEPOT_MEMFD), and its pageblocks are mapped there: two
// views of the same pages. What tcmalloc releases (MADV_REMOVE) goes to the system.
//
// tcmalloc never gives a region back, so the pages are held until the program ends. They are
// shared memory: after a fork parent and child would write to the same blocks. A program that forks
// must exec next, or use regions.cpp's tcmalloc, or jemalloc (hooks.c).
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <pagedepot.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tcmalloc/malloc_extension.h>
#include <thread>
#include <utility>
#include <vector>

namespace {

using tcmalloc::AddressRegion;
using tcmalloc::AddressRegionFactory;
using tcmalloc::MallocExtension;

constexpr size_t MIB = size_t{1} << 20;
// What is mapped at a time: a pageblock of the depot, and a huge page of tcmalloc.
constexpr size_t PIECE = 2 * MIB;

void check(bool is_right, const char *what) {
    if (!is_right) {
        std::fprintf(stderr, "%s\n", what);
        std::exit(1);
    }
}

uintptr_t round_up(uintptr_t address, size_t unit) { return (address + unit - 1) / unit * unit; }

// The depot, and how much of it is in use. All but the counters is set up once.
struct Source {
    pagedepot_t *depot;
    int file;
    unsigned order;
    std::atomic<int> from_depot{0}, from_system{0};

    explicit Source(pagedepot_t *depot)
        : depot(depot), file(pagedepot_fd(depot)), order(unsigned(pagedepot_order_for(PIECE))) {}

    // Puts memory behind a piece of reserved addresses: a block, or the system's, which is nullptr.
    bool back(void *at, void *&block) {
        block = pagedepot_alloc_flags(depot, order, PAGEDEPOT_UNMOVABLE);
        if (block != nullptr) {
            const auto place = static_cast<char *>(block) -
                               static_cast<char *>(pagedepot_base(depot));
            const int access = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_FIXED;
            if (mmap(at, PIECE, access, how, file, place) == at) {
                from_depot++;
                return true;
            }
            // Too many mappings, for example: the reserved addresses are as they were.
            pagedepot_free(depot, block, order);
            block = nullptr;
        }
        from_system++;
        return mprotect(at, PIECE, PROT_READ | PROT_WRITE) == 0;
    }

    // Takes the memory behind a piece away, which nothing has used. A block that stays mapped stays
    // in use.
    void take_away(void *at, void *&block) {
        const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        const bool is_gone = mmap(at, PIECE, PROT_NONE, how, -1, 0) == at;
        (block != nullptr ? from_depot : from_system)--;
        if (is_gone)
            pagedepot_free(depot, block, order);
        block = nullptr;
    }
};

// Addresses that tcmalloc has reserved. Called with tcmalloc's lock held, so it must not allocate
// from tcmalloc: neither it nor the depot does.
class Region final : public AddressRegion {
  public:
    Region(Source &source, void *start, size_t size, void **blocks, Region *older)
        : older(older), source_(source), start_(reinterpret_cast<uintptr_t>(start)),
          end_(start_ + size), next_(start_), blocks_(blocks) {}

    std::pair<void *, size_t> Alloc(size_t size, size_t alignment) override {
        const uintptr_t first = round_up(next_, std::max(alignment, PIECE));
        if (size == 0 || first > end_ || size > end_ - first)
            return {nullptr, 0};
        const uintptr_t end = round_up(first + size, PIECE);
        if (end > end_)
            return {nullptr, 0};
        for (uintptr_t at = first; at < end; at += PIECE) {
            if (source_.back(reinterpret_cast<void *>(at), block_at(at)))
                continue;
            // The next call begins at the same address.
            for (; at > first; at -= PIECE)
                source_.take_away(reinterpret_cast<void *>(at - PIECE), block_at(at - PIECE));
            return {nullptr, 0};
        }
        next_ = end;
        return {reinterpret_cast<void *>(first), end - first};
    }

    bool is_depot(uintptr_t address) const {
        return address >= start_ && address < end_ && blocks_[(address - start_) / PIECE];
    }

    Region *const older;

  private:
    // The depot's block behind a piece.
    void *&block_at(uintptr_t address) { return blocks_[(address - start_) / PIECE]; }

    Source &source_;
    uintptr_t start_, end_, next_;
    void **blocks_;
};

class Regions final : public AddressRegionFactory {
  public:
    Regions(Source &source, AddressRegionFactory *system) : source_(source), system_(system) {}

    AddressRegion *Create(void *start, size_t size, UsageHint hint) override {
        const bool is_ordinary = hint == UsageHint::kNormal ||
                                 hint == UsageHint::kNormalNumaAwareS0 ||
                                 hint == UsageHint::kNormalNumaAwareS1;
        // tcmalloc's own records, and samples with their guards, stay outside.
        if (!is_ordinary)
            return system_->Create(start, size, hint);
        const size_t bytes = (size / PIECE + 1) * sizeof(void *);
        auto *blocks = static_cast<void **>(MallocInternal(bytes));
        std::memset(blocks, 0, bytes);
        void *place = MallocInternal(sizeof(Region));
        newest_ = new (place) Region(source_, start, size, blocks, newest_);
        return newest_;
    }

    // Of blocks that the caller holds: their regions were created before.
    bool is_depot(const void *block) const {
        for (Region *region = newest_; region != nullptr; region = region->older)
            if (region->is_depot(reinterpret_cast<uintptr_t>(block)))
                return true;
        return false;
    }

  private:
    Source &source_;
    AddressRegionFactory *system_;
    std::atomic<Region *> newest_{nullptr};
};

// Allocates, fills and frees blocks; returns how many lay in the depot.
int churn(const Regions &regions, int seed) {
    std::vector<unsigned char *> blocks(20000);
    int inside = 0;
    for (size_t at = 0; at < blocks.size(); at++) {
        const size_t bytes = 16 + (at * 37 + size_t(seed)) % 8192;
        blocks[at] = new unsigned char[bytes];
        inside += regions.is_depot(blocks[at]);
        std::memset(blocks[at], int(at) + seed, bytes);
    }
    for (size_t at = 0; at < blocks.size(); at++) {
        check(blocks[at][15] == (unsigned char)(int(at) + seed), "two blocks overlap");
        delete[] blocks[at];
    }
    return inside;
}

// MiB of the depot's file that have memory.
double present_mib(const Source &source) {
    struct stat file;
    check(fstat(source.file, &file) == 0, "the depot has no file");
    return double(file.st_blocks) * 512 / double(MIB);
}

} // namespace

int main() {
    pagedepot_options_t options = PAGEDEPOT_OPTIONS_INIT;
    options.flags = PAGEDEPOT_MEMFD;
    pagedepot_t *depot = pagedepot_new(512 * MIB, &options);
    check(depot != nullptr, depot == nullptr ? pagedepot_last_error() : "");
    AddressRegionFactory *system = MallocExtension::GetRegionFactory();
    check(system != nullptr, "this program's malloc is not tcmalloc");
    // Never destroyed: tcmalloc uses them until the very end.
    alignas(Source) static char source_place[sizeof(Source)];
    alignas(Regions) static char regions_place[sizeof(Regions)];
    auto &source = *new (source_place) Source(depot);
    auto &regions = *new (regions_place) Regions(source, system);
    MallocExtension::SetRegionFactory(&regions);

    int inside[4] = {};
    std::vector<std::thread> threads;
    for (int seed = 0; seed < 4; seed++)
        threads.emplace_back([=, &inside, &regions] { inside[seed] = churn(regions, seed); });
    for (std::thread &thread : threads)
        thread.join();
    const int sum = inside[0] + inside[1] + inside[2] + inside[3];
    std::printf("%d of 80000 blocks lay in the depot, in %d pieces\n", sum,
                source.from_depot.load());
    check(sum > 40000, "tcmalloc made no use of the depot");

    // What is free in tcmalloc goes to the system, out of pages that are held, and back again.
    std::vector<char *> large;
    for (int at = 0; at < 8; at++) {
        large.push_back(new char[16 * MIB]);
        std::memset(large.back(), 1, 16 * MIB);
    }
    const double before = present_mib(source);
    for (char *block : large)
        delete[] block;
    MallocExtension::ReleaseMemoryToSystem(std::numeric_limits<size_t>::max());
    const double after = present_mib(source);
    std::printf("of %.0f MiB that it had, %.0f went to the system\n", before, before - after);
    check(before - after > 64, "tcmalloc kept what it does not use");
    check(churn(regions, 4) > 10000, "released memory was not used again");

    // More than the depot has: the rest comes from the system.
    large.clear();
    for (int at = 0; at < 48; at++) {
        large.push_back(new char[16 * MIB]);
        large.back()[0] = 1;
    }
    check(source.from_system > 0, "768 MiB came out of a depot of 512");
    for (char *block : large)
        delete[] block;
    std::printf("then %d pieces came from the system; the depot holds %lld pages for tcmalloc\n",
                source.from_system.load(), (long long)pagedepot_validate(depot));
    return 0;
}
