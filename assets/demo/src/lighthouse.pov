// A red and white striped lighthouse on a rock in the sea, late afternoon.
// CC0-1.0
#version 3.7;
global_settings {
  assumed_gamma 1.0
  max_trace_level 8
  radiosity { pretrace_start 0.08 pretrace_end 0.02 count 60 nearest_count 8 error_bound 0.9 recursion_limit 2 gray_threshold 0.3 brightness 0.75 }
}
#include "functions.inc"
#include "buildings.inc"

camera { location <-4, 4.2, -38> look_at <0.6, 9.6, 0> right x*image_width/image_height angle 36 }

light_source { <-700, 420, -520>, rgb <2.1, 1.75, 1.30> area_light x*40, y*40, 4, 4 adaptive 1 circular orient jitter }

sky_sphere {
  pigment { gradient y color_map {
    [0.00 rgb <0.93, 0.80, 0.66>] [0.07 rgb <0.78, 0.80, 0.84>] [0.25 rgb <0.36, 0.56, 0.82>] [0.6 rgb <0.12, 0.32, 0.68>] [1 rgb <0.06, 0.2, 0.5>] } }
}
plane { y, 900 hollow no_shadow
  pigment { wrinkles turbulence 0.5 octaves 6 omega 0.55 lambda 2.2
    color_map { [0.0 rgbt 1] [0.45 rgbt 1] [0.60 rgbt <1, 0.97, 0.92, 0.35>] [0.85 rgbt <1, 0.98, 0.95, 0.02>] }
    scale <1300, 1, 900> translate <250, 0, 420> }
  finish { ambient 0 diffuse 0 emission 1.05 }
}
fog { fog_type 2 fog_offset 0 fog_alt 10 distance 900 rgb <0.85, 0.82, 0.78> }

// ---- sea
plane { y, 0
  pigment { rgb <0.012, 0.085, 0.11> }
  normal { average normal_map {
    [1 bumps 0.55 scale <2.4, 1, 0.9> rotate 10*y]
    [1 bumps 0.45 scale <0.8, 1, 0.35> rotate -20*y]
    [0.7 wrinkles 0.35 scale <6, 1, 2.6> translate 7] } }
  finish { ambient 0 diffuse 0.6 specular 0.3 roughness 0.005 reflection { 0.04, 0.9 fresnel on } conserve_energy }
  interior { ior 1.33 }
}

// ---- rock: a rounded mound, cut into ledges by noise; white foam where the sea meets it
#declare Mound = function { pow((x - 0.8)/9.8, 2) + pow(z/8, 2) + pow((y + 3)/7.2, 2) - 1 }
#declare Rock_Field = function {
  Mound(x, y, z) - 0.55*f_ridged_mf(x*0.16 + 3, y*0.26, z*0.16, 0.9, 2.2, 6, 0.75, 0.8, 2) + 0.42
  - 0.10*f_noise3d(x*0.9, y*2.6, z*0.9) - 0.05*f_noise3d(x*3, y*5, z*3)
}
isosurface {
  function { Rock_Field(x, y, z) }
  contained_by { box { <-15, -1.5, -13>, <15, 5.2, 13> } }
  max_gradient 1.0 accuracy 0.004
  texture {
    pigment { granite turbulence 0.2 color_map {
      [0 rgb <0.19, 0.16, 0.14>] [0.4 rgb <0.36, 0.31, 0.27>] [0.7 rgb <0.50, 0.44, 0.37>] [1 rgb <0.62, 0.56, 0.48>] } scale 3 }
    normal { granite 0.35 scale 0.7 }
    finish { ambient 0 diffuse 0.8 specular 0.08 roughness 0.08 }
  }
  texture {  // wet and dark below, lichen and grass above
    pigment { gradient y turbulence 0.12 color_map {
      [0.00 rgbt <0.03, 0.03, 0.025, 0.05>] [0.16 rgbt <0.05, 0.05, 0.03, 0.25>] [0.26 rgbt 1] [0.62 rgbt 1]
      [0.72 rgbt <0.20, 0.28, 0.08, 0.35>] [1.0 rgbt <0.18, 0.30, 0.07, 0.1>] } scale 6.5 translate -1.0*y }
    normal { granite 0.35 scale 0.7 }
    finish { ambient 0 diffuse 0.75 }
  }
}
plane { y, 0.03
  pigment { function { min(1, max(0, Rock_Field(x, 0, z)*1.25 + 0.75*f_noise3d(x*0.9, 3, z*1.6) - 0.45 )) }
    color_map { [0.00 rgbt <1, 1, 1, 0.10>] [0.22 rgbt <1, 1, 1, 0.45>] [0.42 rgbt 1] [1 rgbt 1] } }
  finish { ambient 0 diffuse 0.9 }
  no_shadow
}

// ---- the tower and a keeper's cottage
object { Lighthouse(rgb <1.6, 1.35, 0.8>) rotate 16*y translate <0, 3.1, 0> }
cylinder { <0, 1.5, 0>, <0, 3.25, 0>, 3.6 pigment { rgb <0.60, 0.56, 0.50> } normal { granite 0.2 scale 0.8 } finish { Plaster } }
#declare Window_Glow = <0, 0, 0>;
union {
  object { House(5.4, 2.9, rgb <0.92, 0.90, 0.84>, rgb <0.42, 0.13, 0.08>, rgb <0.10, 0.24, 0.30>, 3) scale <1, 1, 0.7> }
  box { <-0.3, -3, -0.3>, <5.7, 0, 5.2> pigment { rgb <0.55, 0.50, 0.44> } normal { granite 0.3 } finish { Plaster } }
  scale 0.72 rotate 20*y translate <2.7, 3.1, -0.6>
}

// ---- gulls
#local R = seed(23);
#for (I, 0, 7)
  object { Gull(0.1 + 0.3*rand(R)) rotate <0, 360*rand(R), 30*(rand(R) - 0.5)> scale 0.9 translate <-9 + 17*rand(R), 9 + 11*rand(R), -8 + 10*rand(R)> }
#end
