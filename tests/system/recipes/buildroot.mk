# What of Buildroot the external tree in board/packages/buildroot uses, so that it can be tried
# without Buildroot: the steps of its cargo infrastructure, in the same order and with the same
# options, for this machine's own processor and with its own compiler. Kconfig is not here: its
# symbols are set by who calls this. `cargo xtask recipes buildroot` does.

SHELL = /bin/bash
.ONESHELL:
.SHELLFLAGS = -e -c

BUILD_DIR = $(O)/build
TARGET_DIR = $(O)/target
HOST_DIR = $(O)/host
DL_DIR = $(O)/dl
INSTALL = install
SED = sed -i -e

qstrip = $(strip $(subst ",,$(1)))
UPPERCASE = $(shell echo $(1) | tr a-z- A-Z_)
define sep


endef

# The package whose file is read; there is only one in the tree.
pkgname = $(notdir $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST)))))

# Arguments as in Buildroot: name, variable prefix, prefix without HOST_, and target or host.
define inner-cargo-package
$(2)_SOURCES = $$(DL_DIR)/$(3)-$$($(3)_VERSION)
$(2)_DIR = $$(BUILD_DIR)/$(1)-$$($(3)_VERSION)

# Clones and vendors, as Buildroot's download helper and its post-processing for cargo do.
$(1)-download:
	test "$$($(3)_SITE_METHOD)" = git
	rm -rf $$($(2)_SOURCES) && mkdir -p $$(DL_DIR)
	git clone --quiet $$($(3)_SITE) $$($(2)_SOURCES)
	cd $$($(2)_SOURCES)
	git checkout --quiet $$($(3)_VERSION)
	rm -rf .git
	mkdir -p .cargo
	CARGO_HOME=$$(DL_DIR)/br-cargo-home cargo vendor --manifest-path Cargo.toml --locked VENDOR > .cargo/config

# Buildroot names no target for the host. Here that would be the one of .cargo/host in the
# checkout around this directory: this machine's own is named, and the program put where Buildroot
# finds it.
$(1)-build: @D = $$($(2)_DIR)
$(1)-build: PKG = $(2)
$(1)-build:
	test -d $$($(2)_SOURCES)/VENDOR
	rm -rf $$($(2)_DIR) && mkdir -p $$(BUILD_DIR)
	cp -R $$($(2)_SOURCES) $$($(2)_DIR)
	$$(foreach hook,$$($(2)_POST_PATCH_HOOKS),$$(call $$(hook))$$(sep))
	cd $$($(2)_DIR)
	CARGO_HOME=$$(O)/empty-cargo-home CARGO_BUILD_TARGET=$$(RUSTC_TARGET_NAME) $$($(2)_CARGO_ENV) \
		cargo build --offline --release --manifest-path Cargo.toml --locked $$($(2)_CARGO_BUILD_OPTS)
	$(if $(filter host,$(4)),cp target/$$(RUSTC_TARGET_NAME)/release/nodlet target/release)

$(1)-install: @D = $$($(2)_DIR)
$(1)-install:
	$$($(2)_INSTALL$(if $(filter target,$(4)),_TARGET)_CMDS)
	$(if $(filter target,$(4)),$$($(2)_INSTALL_INIT_$$(INIT)))
endef

cargo-package = $(call inner-cargo-package,$(pkgname),$(call UPPERCASE,$(pkgname)),$(call UPPERCASE,$(pkgname)),target)
host-cargo-package = $(call inner-cargo-package,host-$(pkgname),$(call UPPERCASE,host-$(pkgname)),$(call UPPERCASE,$(pkgname)),host)

include $(BR2_EXTERNAL_NODLET_PATH)/external.mk

target-finalize:
	$(foreach hook,$(NODLET_TARGET_FINALIZE_HOOKS),$(call $(hook))$(sep))

# What Buildroot would do with it, for who looks.
show:
	@printf '%s\n' 'version $(NODLET_VERSION)' 'site $(NODLET_SITE)' 'depends $(NODLET_DEPENDENCIES)' 'platform $(NODLET_PLATFORM)' 'patches $(NODLET_POST_PATCH_HOOKS)'
