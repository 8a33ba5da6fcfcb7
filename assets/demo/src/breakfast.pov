// Still life: a white teapot, a cup of tea, a bowl of fruit and a croissant on a checked cloth by a window.
// CC0-1.0
#version 3.7;
global_settings {
  assumed_gamma 1.0
  max_trace_level 8
  radiosity { pretrace_start 0.08 pretrace_end 0.02 count 80 nearest_count 8 error_bound 0.7 recursion_limit 2 gray_threshold 0.2 brightness 0.85 }
}
#include "functions.inc"
camera { location <0.5, 6.0, -14.0> look_at <0.0, 1.05, 0> right x*image_width/image_height angle 47 }
light_source { <-18, 17, -6>, rgb <1.75, 1.55, 1.22> area_light z*7, y*7, 8, 8 adaptive 1 circular orient jitter }
light_source { <12, 10, -18>, rgb <0.18, 0.20, 0.25> shadowless }
sky_sphere { pigment { rgb <0.72, 0.78, 0.88> } }
box { <-3, -4, 0>, <3, 4, 0.1> rotate -90*y translate <-15, 10, -3> pigment { rgb 1 } finish { emission 2.5 diffuse 0 ambient 0 } no_shadow no_image no_radiosity }

// ---- wall, table, cloth
plane { -z, -6.5
  pigment { bozo turbulence 0.4 color_map { [0 rgb <0.40, 0.47, 0.42>] [1 rgb <0.46, 0.53, 0.47>] } scale 3 }
  normal { granite 0.08 scale 1.5 } finish { ambient 0 diffuse 0.8 } }
box { <-30, -0.5, -9>, <30, -0.03, 5.4>
  pigment { wood turbulence 0.06 color_map { [0 rgb <0.33, 0.17, 0.08>] [1 rgb <0.20, 0.09, 0.04>] } scale <0.5, 0.5, 8> rotate <3, 90, 0> }
  finish { ambient 0 diffuse 0.7 specular 0.3 roughness 0.02 reflection { 0, 0.15 fresnel on } conserve_energy } interior { ior 1.4 } }
#declare Cloth_Blue = rgb <0.10, 0.22, 0.48>; #declare Cloth_White = rgb <0.90, 0.89, 0.85>;
box { <-6.2, -0.03, -5.6>, <6.2, 0, 3.4>
  texture { pigment { Cloth_White } finish { ambient 0 diffuse 0.85 } }
  texture { pigment { gradient x color_map { [0 Cloth_Blue transmit 0.45] [0.5 Cloth_Blue transmit 0.45] [0.5 Cloth_White transmit 1] [1 Cloth_White transmit 1] } scale 1.1 } finish { ambient 0 diffuse 0.85 } normal { quilted 0.15 scale 0.07 } }
  texture { pigment { gradient z color_map { [0 Cloth_Blue transmit 0.45] [0.5 Cloth_Blue transmit 0.45] [0.5 Cloth_White transmit 1] [1 Cloth_White transmit 1] } scale 1.1 } finish { ambient 0 diffuse 0.85 } normal { quilted 0.15 scale 0.07 } }
  rotate -7*y
}

#declare Glaze = finish { ambient 0 diffuse 0.85 specular 0.6 roughness 0.004 reflection { 0.01, 0.30 fresnel on } conserve_energy }
#declare China = texture { pigment { rgb <0.93, 0.92, 0.88> } finish { Glaze } }
#declare Rim = texture { pigment { rgb <0.08, 0.17, 0.42> } finish { Glaze } }

// ---- teapot
#declare Teapot = union {
  lathe { cubic_spline 11, <0, 0.1>, <0.0, 0.02>, <0.75, 0.03>, <0.95, 0.12>, <1.55, 0.75>, <1.75, 1.45>, <1.50, 2.15>, <1.0, 2.62>, <0.86, 2.72>, <0.82, 2.78>, <0.7, 2.80> }
  lathe { cubic_spline 9, <0.9, 2.5>, <0.90, 2.74>, <0.82, 2.86>, <0.55, 3.02>, <0.2, 3.12>, <0.14, 3.22>, <0.24, 3.38>, <0.0, 3.52>, <-0.2, 3.5> }
  sphere_sweep { cubic_spline 7, <1.0, 0.6, 0>, 0.5 <1.35, 0.85, 0>, 0.46 <1.95, 1.25, 0>, 0.34 <2.35, 1.95, 0>, 0.24 <2.75, 2.62, 0>, 0.19 <3.02, 2.78, 0>, 0.17 <3.4, 2.9, 0>, 0.17 tolerance 0.01 }
  sphere_sweep { cubic_spline 8, <-1.0, 2.3, 0>, 0.15 <-1.35, 2.28, 0>, 0.15 <-1.95, 2.52, 0>, 0.14 <-2.55, 2.30, 0>, 0.14 <-2.62, 1.60, 0>, 0.14 <-2.15, 0.95, 0>, 0.14 <-1.55, 0.85, 0>, 0.14 <-1.2, 0.9, 0>, 0.14 tolerance 0.01 }
  texture { China } interior { ior 1.5 }
}
#declare Bands = union {
  torus { 1.755, 0.03 translate 1.50*y } torus { 0.90, 0.045 translate 2.72*y } torus { 0.97, 0.04 translate 0.12*y }
  sphere { <0, 3.42, 0>, 0.17 }
  // painted flowers round the belly
  #for (I, 0, 8)
    union {
      #for (P, 0, 4) sphere { <0, 0.15, 0>, 0.10 scale <0.8, 1, 0.35> rotate P*72*z } #end
      rotate x*-14 translate <0, 1.13, -1.70> rotate y*I*40
    }
  #end
  texture { Rim } interior { ior 1.5 }
}
#declare Hearts = union {
  #for (I, 0, 8) sphere { <0, 1.13, -1.685>, 0.075 rotate y*I*40 } #end
  pigment { rgb <0.90, 0.60, 0.08> } finish { Glaze }
}
union { object { Teapot } object { Bands } object { Hearts } scale 1.12 rotate 22*y translate <-2.4, 0, 1.1> }

// ---- cup of tea on its saucer
union {
  lathe { cubic_spline 12, <0.3, 0.3>, <0, 0.22>, <0.6, 0.22>, <0.95, 0.55>, <1.12, 1.15>, <1.22, 1.55>, <1.26, 1.58>, <1.29, 1.55>, <1.19, 1.12>, <1.02, 0.50>, <0.62, 0.12>, <0.3, 0.1> texture { China } interior { ior 1.5 } }
  lathe { cubic_spline 9, <-0.2, 0.05>, <0, 0.05>, <0.8, 0.06>, <1.4, 0.16>, <1.95, 0.36>, <2.0, 0.37>, <1.96, 0.28>, <1.3, 0.06>, <0.9, 0> texture { China } interior { ior 1.5 } }
  torus { 1.255, 0.038 translate 1.57*y texture { Rim } }
  torus { 1.97, 0.035 translate 0.36*y texture { Rim } }
  sphere_sweep { cubic_spline 7, <0.9, 1.35, 0>, 0.09 <1.15, 1.30, 0>, 0.09 <1.62, 1.36, 0>, 0.085 <1.80, 1.02, 0>, 0.085 <1.50, 0.66, 0>, 0.085 <1.04, 0.58, 0>, 0.09 <0.8, 0.6, 0>, 0.09 tolerance 0.01 texture { China } interior { ior 1.5 } rotate 35*y }
  disc { <0, 1.36, 0>, y, 1.17 pigment { rgb <0.42, 0.13, 0.02> } finish { ambient 0 diffuse 0.6 specular 0.5 roughness 0.003 reflection { 0.03, 0.5 fresnel on } conserve_energy } interior { ior 1.33 } }
  // spoon
  union {
    sphere { 0, 1 scale <0.36, 0.09, 0.24> translate <1.55, 0.36, 0> }
    sphere_sweep { cubic_spline 5, <1.3, 0.38, 0>, 0.05 <1.75, 0.40, 0>, 0.055 <2.5, 0.48, 0>, 0.05 <3.1, 0.46, 0>, 0.08 <3.4, 0.45, 0>, 0.08 }
    pigment { rgb <0.80, 0.79, 0.76> } finish { ambient 0 diffuse 0.25 specular 0.9 roughness 0.01 reflection { 0.55 } metallic } rotate 78*y translate <-0.1, 0, -0.1>
  }
  translate <0.55, 0, -2.6>
}

// ---- bowl of fruit
#macro Apple(Tint, Blush)
  union {
    lathe { cubic_spline 11, <-0.25, 0.4>, <0, 0.18>, <0.25, 0.06>, <0.55, 0.12>, <0.92, 0.65>, <1.0, 1.15>, <0.85, 1.62>, <0.48, 1.80>, <0.18, 1.68>, <0, 1.45>, <-0.3, 1.3>
      pigment { spherical turbulence 0.25 color_map { [0 Blush] [0.35 Blush] [0.7 Tint] [1 Tint] } scale 1.9 translate <-0.7, 0.8, -0.9> }
      normal { bumps 0.03 scale 0.2 }
      finish { ambient 0 diffuse 0.75 specular 0.45 roughness 0.012 reflection { 0.01, 0.15 fresnel on } conserve_energy } interior { ior 1.4 } }
    sphere_sweep { b_spline 5, <0, 1.2, 0>, 0.05 <0, 1.5, 0>, 0.045 <0.03, 1.8, 0>, 0.045 <0.12, 2.05, 0>, 0.055 <0.2, 2.2, 0>, 0.06 pigment { rgb <0.17, 0.09, 0.03> } finish { ambient 0 diffuse 0.7 } }
  }
#end
#macro Orange()
  union {
    sphere { 0, 0.95 scale <1, 0.95, 1> pigment { bozo color_map { [0 rgb <0.95, 0.36, 0.01>] [1 rgb <0.98, 0.45, 0.03>] } scale 0.5 }
      normal { bumps 0.28 scale 0.07 } finish { ambient 0 diffuse 0.75 specular 0.35 roughness 0.03 } }
    sphere { <0, 0.89, 0>, 0.09 scale <1, 1, 1> pigment { rgb <0.18, 0.25, 0.05> } finish { ambient 0 diffuse 0.7 } }
    translate 0.92*y
  }
#end
#macro Pear()
  union {
    lathe { cubic_spline 10, <-0.2, 0.2>, <0, 0.04>, <0.5, 0.08>, <0.93, 0.6>, <0.92, 1.15>, <0.58, 1.85>, <0.42, 2.35>, <0.22, 2.62>, <0, 2.60>, <-0.2, 2.5>
      pigment { granite turbulence 0.1 color_map { [0 rgb <0.55, 0.58, 0.12>] [0.6 rgb <0.72, 0.68, 0.18>] [1 rgb <0.62, 0.42, 0.12>] } scale 1.2 }
      finish { ambient 0 diffuse 0.75 specular 0.25 roughness 0.03 } }
    sphere_sweep { b_spline 5, <0, 2.2, 0>, 0.05 <0, 2.5, 0>, 0.045 <0.03, 2.8, 0>, 0.04 <0.14, 3.0, 0>, 0.05 <0.2, 3.1, 0>, 0.05 pigment { rgb <0.17, 0.09, 0.03> } finish { ambient 0 diffuse 0.7 } }
  }
#end
union {
  lathe { cubic_spline 10, <0.3, 0.3>, <0, 0.25>, <1.0, 0.28>, <1.9, 0.75>, <2.45, 1.55>, <2.52, 1.58>, <2.53, 1.50>, <2.0, 0.62>, <1.05, 0.1>, <0.4, 0.05>
    pigment { gradient y color_map { [0 rgb <0.18, 0.30, 0.33>] [0.75 rgb <0.22, 0.38, 0.40>] [0.92 rgb <0.62, 0.62, 0.52>] [1 rgb <0.70, 0.68, 0.56>] } scale 1.6 }
    finish { Glaze } interior { ior 1.5 } }
  cylinder { 0, 0.2*y, 1.05 pigment { rgb <0.18, 0.30, 0.33> } finish { Glaze } }
  object { Apple(rgb <0.62, 0.55, 0.10>, rgb <0.62, 0.03, 0.03>) rotate <-14, 30, 12> translate <-1.05, 0.75, -0.75> }
  object { Orange() rotate -15*z translate <0.95, 0.75, -0.95> }
  object { Apple(rgb <0.35, 0.50, 0.07>, rgb <0.42, 0.55, 0.10>) rotate <10, 200, -10> translate <1.15, 0.8, 0.85> }
  object { Orange() translate <-0.95, 0.8, 1.0> }
  object { Pear() rotate <-8, 0, -16> translate <-0.1, 1.45, 0.25> }
  translate <3.0, 0, 0.9>
}
// one orange beside the bowl, a lemon too
object { Orange() rotate 20*x translate <4.6, 0, -2.3> }
union {
  sphere { 0, 1 scale <1.0, 0.74, 0.74> } sphere { <0.92, 0, 0>, 0.19 } sphere { <-0.9, 0, 0>, 0.2 }
  pigment { rgb <0.95, 0.78, 0.06> } normal { bumps 0.2 scale 0.09 } finish { ambient 0 diffuse 0.75 specular 0.35 roughness 0.03 }
  rotate 35*y scale 0.92 translate <3.1, 0.66, -3.3>
}

// ---- croissant on a plate
union {
  lathe { cubic_spline 8, <-0.2, 0.06>, <0, 0.06>, <1.0, 0.07>, <1.6, 0.18>, <1.9, 0.30>, <1.94, 0.27>, <1.5, 0.06>, <1.0, 0> texture { China } interior { ior 1.5 } }
  torus { 1.9, 0.035 translate 0.29*y texture { Rim } }
  union {
    #for (I, -7, 7)
      #local A = I/7;
      sphere { 0, 1 scale <0.20 + 0.16*(1 - A*A), 0.14 + 0.50*pow(1 - A*A*0.92, 0.8), 0.14 + 0.50*pow(1 - A*A*0.92, 0.8)>
        rotate y*A*88
        rotate x*(mod(I + 8, 2)*8)
        translate <1.18*sin(A*1.75), 0, 1.15*(cos(A*1.75) - 1)> }
    #end
    pigment { granite turbulence 0.3 color_map { [0 rgb <0.42, 0.17, 0.04>] [0.5 rgb <0.70, 0.37, 0.10>] [1 rgb <0.85, 0.58, 0.25>] } scale 1.4 }
    normal { granite 0.25 scale 0.5 }
    finish { ambient 0 diffuse 0.75 specular 0.25 roughness 0.03 }
    scale <1.0, 0.9, 1.0> rotate 14*y translate <0, 0.60, 0.55>
  }
  translate <-3.4, 0, -2.75>
}
