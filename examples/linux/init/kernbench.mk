# SPDX-License-Identifier: GPL-2.0
# What kernbench builds: Linux's compiler for device trees and the library of the same sources, from the
# folder that this file is copied to, into the current one.
SOURCE := $(dir $(abspath $(firstword $(MAKEFILE_LIST))))
VPATH := $(SOURCE):$(SOURCE)libfdt
CFLAGS := -O2 -I. -I$(SOURCE) -I$(SOURCE)libfdt -DNO_YAML
DTC := dtc flattree fstree data livetree treesource srcpos checks util dtc-lexer.lex dtc-parser.tab
FDT := $(basename $(notdir $(wildcard $(SOURCE)libfdt/*.c)))

all: dtc fdtoverlay
dtc: $(DTC:=.o)
	$(CC) -o $@ $^
fdtoverlay: fdtoverlay.o util.o $(FDT:=.o)
	$(CC) -o $@ $^
$(DTC:=.o): dtc-parser.tab.h
%.tab.c %.tab.h: %.y
	bison -b $* -d $<
%.lex.c: %.l
	flex -o $@ $<
