# As pluginlib does, refuses a description that is not there.
function(pluginlib_export_plugin_description_file base file)
  if(NOT EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/${file}")
    message(FATAL_ERROR "${file} of plugins for ${base} is missing")
  endif()
endfunction()
add_library(pluginlib::pluginlib INTERFACE IMPORTED)
set(pluginlib_FOUND TRUE)
