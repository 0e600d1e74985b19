# Which floors a program links: its own and those below it.

# sheaf_floors_upto(FLOOR OUT): the object libraries of FLOOR and of the floors below it; empty
# when the floor is not part of this build.
function(sheaf_floors_upto floor out)
  set(libraries "")
  if(floor IN_LIST SHEAF_FLOORS)
    foreach(each IN LISTS SHEAF_FLOORS)
      list(APPEND libraries sheaf_${each})
      if(each STREQUAL floor)
        break()
      endif()
    endforeach()
  endif()
  set(${out} ${libraries} PARENT_SCOPE)
endfunction()
