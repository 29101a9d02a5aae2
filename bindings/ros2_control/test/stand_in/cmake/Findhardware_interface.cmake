add_library(hardware_interface::hardware_interface INTERFACE IMPORTED)
set_target_properties(hardware_interface::hardware_interface PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/../ros2_control;${CMAKE_CURRENT_LIST_DIR}/../ros")
set(hardware_interface_FOUND TRUE)
