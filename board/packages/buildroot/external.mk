include $(sort $(wildcard $(BR2_EXTERNAL_NODLET_PATH)/package/*/*.mk))
