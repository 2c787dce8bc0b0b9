# Bakes Pods and their images into a root file system, of whatever processor, without root. In the
# recipe of an image:
#
#   inherit nodlet-image
#   NODLET_IMAGES = "${THISDIR}/files/web.tar"
#   NODLET_MANIFESTS = "${THISDIR}/files/web.yaml"
#
# They lie in /usr/lib/nodlet, which may be read-only, and the Pods start with the first boot.

# Archives or directories, as podman, buildah, skopeo and docker save them.
NODLET_IMAGES ??= ""
# Files in YAML or JSON.
NODLET_MANIFESTS ??= ""
# Which image of an archive for several platforms.
NODLET_PLATFORM ??= "${@nodlet_platform(d)}"

IMAGE_INSTALL:append = " nodlet"

def nodlet_platform(d):
    machine = d.getVar('TARGET_ARCH')
    known = {'aarch64': 'arm64', 'arm': 'arm/v7', 'riscv64': 'riscv64', 'x86_64': 'amd64'}
    if machine not in known:
        bb.fatal('nodlet-image: no platform is known for TARGET_ARCH = "%s"; set NODLET_PLATFORM to OS/ARCH' % machine)
    return 'linux/' + known[machine]

do_rootfs[depends] += "nodlet-native:do_populate_sysroot"
do_rootfs[file-checksums] += "${@' '.join('%s:%s' % (path, os.path.exists(path)) for path in (d.getVar('NODLET_IMAGES') + ' ' + d.getVar('NODLET_MANIFESTS')).split())}"

nodlet_bake () {
	place=${IMAGE_ROOTFS}${nonarch_libdir}/nodlet
	store=${WORKDIR}/nodlet-store
	rm -rf $store $place/images
	install -d $store
	for archive in ${NODLET_IMAGES}; do
		nodlet image load --root $store --platform ${NODLET_PLATFORM} $archive
	done
	install -d $place/manifests
	for manifest in ${NODLET_MANIFESTS}; do
		install -m 0644 $manifest $place/manifests/
	done
	if [ -d $store/var/lib/nodlet/images ]; then
		cp -a --no-preserve=ownership $store/var/lib/nodlet/images $place/images
		chown -R root:root $place
		rm -rf $store
	fi
}
ROOTFS_POSTPROCESS_COMMAND += "nodlet_bake"
