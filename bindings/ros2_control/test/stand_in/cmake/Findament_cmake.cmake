function(ament_package)
endfunction()
set(ament_cmake_FOUND TRUE)
