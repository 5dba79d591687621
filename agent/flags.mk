# How both C programs are compiled: statically, because the agent runs in any image and the launcher before a sandbox has
# any library. With musl where it is installed (a quarter of the memory), else with the system's libc.
CC_STATIC := $(shell command -v musl-gcc || command -v cc)
WARN := -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wno-format-truncation -Werror
HARDEN := -fstack-protector-strong -D_FORTIFY_SOURCE=2 -fno-plt
# Static, and yet loaded at an address that changes. musl-gcc does not know the combination: its parts are named. zig
# knows it by other words.
MUSL := $(wildcard /usr/lib/$(shell uname -m)-linux-musl/rcrt1.o)
ifneq ($(and $(findstring musl-gcc,$(CC_STATIC)),$(MUSL)),)
PIE := -fPIE -static -nostartfiles -Wl,-pie,--no-dynamic-linker,-z,text $(MUSL) $(dir $(MUSL))crti.o $(dir $(MUSL))crtn.o
else ifneq ($(findstring ziglang,$(CC_STATIC)),)
PIE := -fPIE -static -pie
else
PIE := -fPIE -static-pie
endif
STATIC := $(WARN) $(HARDEN) -O2 $(PIE) -Wl,-z,relro,-z,now,-z,noexecstack -s
# For the builds that only the tests run: the address and undefined-behaviour sanitizers end the program at a fault.
SANITIZE := $(WARN) -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
    -static-libasan -static-libubsan
FUZZ := -std=gnu11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla -Wformat=2 -Wno-unused-function -Werror -O1 -g \
    -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
