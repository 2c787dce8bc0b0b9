################################################################################
#
# nodlet
#
################################################################################

# The commit that is checked out where this tree lies. Buildroot clones it, vendors the crates of
# its Cargo.lock, and keeps both in its download directory.
NODLET_SITE = $(realpath $(BR2_EXTERNAL_NODLET_PATH)/../../..)
NODLET_SITE_METHOD = git
NODLET_VERSION := $(shell git -C $(BR2_EXTERNAL_NODLET_PATH) rev-parse HEAD)
NODLET_LICENSE = 0BSD, Apache-2.0, BSD-3-Clause, ISC, MIT, MPL-2.0, Unicode-3.0, Zlib
NODLET_LICENSE_FILES = LICENSE board/packages/licences/crates.txt

# The program names its commit.
NODLET_CARGO_ENV = NODLET_COMMIT=$(NODLET_VERSION) \
	NODLET_COMMIT_DATE=$(shell TZ=UTC git -C $(BR2_EXTERNAL_NODLET_PATH) log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ)

NODLET_CARGO_BUILD_OPTS = --frozen --package nodlet
HOST_NODLET_CARGO_BUILD_OPTS = --frozen --package nodlet

# libcontainer as it is published is wrong on 32-bit processors, and all builds have the same source.
# The vendored crate is patched, and its checksums of single files are dropped.
define NODLET_PATCH_LIBCONTAINER
	patch -d $(@D)/VENDOR/libcontainer -p1 < $(@D)/xtask/patches/libcontainer-0.7.0.patch
	$(SED) 's/"files": *{[^}]*}/"files":{}/' $(@D)/VENDOR/libcontainer/.cargo-checksum.json
endef
NODLET_POST_PATCH_HOOKS += NODLET_PATCH_LIBCONTAINER
HOST_NODLET_POST_PATCH_HOOKS += NODLET_PATCH_LIBCONTAINER

# Its members may use the API.
define NODLET_USERS
	- - nodlet -1 * - - - API of nodlet
endef

define NODLET_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/$(if $(BR2_ENABLE_DEBUG),debug,release)/nodlet \
		$(TARGET_DIR)/usr/bin/nodlet
	$(INSTALL) -d -m 0755 $(TARGET_DIR)/etc/nodlet/manifests
endef

define NODLET_INSTALL_INIT_SYSTEMD
	$(INSTALL) -D -m 0644 $(@D)/board/systemd/nodlet.service \
		$(TARGET_DIR)/usr/lib/systemd/system/nodlet.service
	$(INSTALL) -D -m 0644 $(@D)/board/systemd/05-nodlet.network \
		$(TARGET_DIR)/usr/lib/systemd/network/05-nodlet.network
	$(INSTALL) -D -m 0644 $(@D)/board/systemd/80-nodlet-networkmanager.conf \
		$(TARGET_DIR)/usr/lib/NetworkManager/conf.d/80-nodlet.conf
endef

define NODLET_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(@D)/board/packages/sysvinit/nodlet \
		$(TARGET_DIR)/etc/init.d/S80nodlet
endef

# The program that bakes images in runs on the host.
define HOST_NODLET_INSTALL_CMDS
	$(INSTALL) -D -m 0755 $(@D)/target/release/nodlet $(HOST_DIR)/bin/nodlet
endef

NODLET_BAKED_IMAGES = $(call qstrip,$(BR2_PACKAGE_NODLET_IMAGES))
NODLET_BAKED_MANIFESTS = $(call qstrip,$(BR2_PACKAGE_NODLET_MANIFESTS))

ifneq ($(NODLET_BAKED_IMAGES),)
NODLET_DEPENDENCIES += host-nodlet

ifeq ($(BR2_aarch64),y)
NODLET_PLATFORM = linux/arm64
else ifeq ($(BR2_arm),y)
NODLET_PLATFORM = linux/arm/v7
else ifeq ($(BR2_riscv),y)
NODLET_PLATFORM = linux/riscv64
else
NODLET_PLATFORM = linux/amd64
endif

# Buildroot makes root the owner of all files when it makes the file system.
define NODLET_BAKE_IMAGES
	rm -rf $(BUILD_DIR)/nodlet-store $(TARGET_DIR)/usr/lib/nodlet/images
	mkdir -p $(BUILD_DIR)/nodlet-store $(TARGET_DIR)/usr/lib/nodlet
	$(foreach archive,$(NODLET_BAKED_IMAGES),\
		$(HOST_DIR)/bin/nodlet image load --root $(BUILD_DIR)/nodlet-store \
			--platform $(NODLET_PLATFORM) $(archive)$(sep))
	cp -R $(BUILD_DIR)/nodlet-store/var/lib/nodlet/images $(TARGET_DIR)/usr/lib/nodlet/images
endef
NODLET_TARGET_FINALIZE_HOOKS += NODLET_BAKE_IMAGES
endif

ifneq ($(NODLET_BAKED_MANIFESTS),)
define NODLET_BAKE_MANIFESTS
	$(INSTALL) -d -m 0755 $(TARGET_DIR)/usr/lib/nodlet/manifests
	$(INSTALL) -m 0644 $(NODLET_BAKED_MANIFESTS) $(TARGET_DIR)/usr/lib/nodlet/manifests/
endef
NODLET_TARGET_FINALIZE_HOOKS += NODLET_BAKE_MANIFESTS
endif

$(eval $(cargo-package))
$(eval $(host-cargo-package))
