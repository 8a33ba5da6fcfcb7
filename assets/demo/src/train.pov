// A wooden toy train runs from left to right past building blocks. clock 0..1 is the way; render frames with +KFF.
// CC0-1.0
#version 3.7;
global_settings {
  assumed_gamma 1.0
  max_trace_level 5
  radiosity { pretrace_start 0.08 pretrace_end 0.04 count 40 nearest_count 6 error_bound 1.2 recursion_limit 1 gray_threshold 0.2 brightness 0.65 always_sample off }
}
camera { location <0, 5.4, -15> look_at <0, 1.75, 0> right x*384/224 angle 46 }
light_source { <-14, 20, -14>, rgb <1.25, 1.15, 0.98> area_light x*6, y*6, 4, 4 adaptive 1 circular orient }
light_source { <16, 12, -16>, rgb <0.2, 0.22, 0.28> shadowless }
sky_sphere { pigment { rgb <0.80, 0.84, 0.92> } }

#declare Lacquer = finish { ambient 0 diffuse 0.8 specular 0.45 roughness 0.012 reflection { 0.01, 0.14 fresnel on } conserve_energy }
#declare Red = texture { pigment { rgb <0.75, 0.05, 0.04> } finish { Lacquer } }
#declare Blue = texture { pigment { rgb <0.05, 0.20, 0.58> } finish { Lacquer } }
#declare Green = texture { pigment { rgb <0.08, 0.40, 0.14> } finish { Lacquer } }
#declare Yellow = texture { pigment { rgb <0.95, 0.66, 0.05> } finish { Lacquer } }
#declare Black = texture { pigment { rgb 0.025 } finish { Lacquer } }
#declare Beech = texture { pigment { wood turbulence 0.08 color_map { [0 rgb <0.78, 0.56, 0.33>] [1 rgb <0.66, 0.43, 0.22>] } scale <0.25, 0.25, 4> rotate 88*y } finish { Lacquer } }
#macro Block(A, B) superellipsoid { <0.12, 0.12> translate 1 scale 0.5 scale B - A translate A } #end

// X runs along the track; Turn is how far the wheels have rolled, in units
#macro Wheel(X, R, Turn)
  #for (Side, -1, 1, 2)
    union {
      cylinder { <0, 0, -0.14>, <0, 0, 0.14>, R texture { Black } }
      torus { R*0.97, 0.06 rotate 90*x translate -0.10*z texture { Black } }
      cylinder { <0, 0, -0.16>, <0, 0, 0.16>, R*0.75 texture { Yellow } }
      #for (K, 0, 4) cylinder { <R*0.45, 0, -0.175>, <R*0.45, 0, 0.175>, R*0.15 rotate z*K*72 texture { Black } } #end
      cylinder { <0, 0, -0.22>, <0, 0, 0.22>, R*0.18 texture { Red } }
      rotate -z*degrees(Turn/R)
      translate <X, R, Side*0.85>
    }
  #end
#end
#macro Locomotive(Turn)
  union {
    object { Block(<-1.9, 0.55, -0.72>, <1.9, 0.85, 0.72>) texture { Beech } }
    cylinder { <-0.6, 1.55, 0>, <1.65, 1.55, 0>, 0.70 texture { Green } }
    #for (K, 0, 2) cylinder { <-0.1 + 0.75*K, 1.55, 0>, <0.02 + 0.75*K, 1.55, 0>, 0.73 texture { Yellow } } #end
    cylinder { <1.62, 1.55, 0>, <1.78, 1.55, 0>, 0.60 texture { Black } }
    sphere { <1.80, 1.72, 0>, 0.2 pigment { rgb <1, 0.95, 0.7> } finish { Lacquer emission 0.4 } }
    lathe { linear_spline 8, <0.0, 0>, <0.26, 0>, <0.22, 0.7>, <0.40, 1.15>, <0.42, 1.28>, <0.30, 1.28>, <0.2, 1.1>, <0, 1.1> translate <1.15, 2.1, 0> texture { Red } }
    sphere { <0.3, 2.25, 0>, 0.30 texture { Yellow } }
    object { Block(<-1.85, 0.85, -0.78>, <-0.55, 2.55, 0.78>) texture { Red } }
    #for (Side, -1, 1, 2) object { Block(<-1.5, 1.65, 0.80*Side - 0.03>, <-0.9, 2.3, 0.80*Side + 0.03>) pigment { rgb <0.55, 0.72, 0.80> } finish { Lacquer } } #end
    object { Block(<-2.05, 2.52, -0.95>, <-0.35, 2.74, 0.95>) texture { Blue } }
    prism { linear_spline 0, 1.4, 4, <1.75, 0.2>, <2.35, 0.2>, <1.85, 0.85>, <1.75, 0.2> rotate -90*x translate 0.7*z texture { Red } }
    Wheel(-1.25, 0.62, Turn) Wheel(0.25, 0.45, Turn) Wheel(1.3, 0.45, Turn)
  }
#end
#macro Wagon(Body, Turn)
  union {
    object { Block(<-1.5, 0.5, -0.72>, <1.5, 0.8, 0.72>) texture { Beech } }
    difference {
      object { Block(<-1.4, 0.8, -0.75>, <1.4, 1.65, 0.75>) }
      box { <-1.28, 0.9, -0.63>, <1.28, 2, 0.63> }
      texture { Body }
    }
    cylinder { <1.4, 0.62, 0>, <2.1, 0.62, 0>, 0.08 texture { Black } }
    Wheel(-0.85, 0.42, Turn) Wheel(0.85, 0.42, Turn)
  }
#end
#macro Ball(P, Tint) sphere { P, 0.44 pigment { Tint } finish { Lacquer } } #end

#declare Way = 6.4*(2*clock - 1) - 0.6;
union {
  object { Locomotive(Way) translate 1.2*x }
  union {
    object { Wagon(Blue, Way) }
    Ball(<-0.8, 1.5, 0.1>, rgb <0.95, 0.45, 0.03>) Ball(<0.05, 1.55, -0.1>, rgb <0.9, 0.85, 0.1>) Ball(<0.85, 1.5, 0.1>, rgb <0.75, 0.08, 0.30>)
    translate -2.75*x
  }
  // steam: puffs that stay behind and grow, their age follows the way travelled
  #for (K, 0, 7)
    #local Age = mod(K + Way*0.9 + 40, 8)/8;
    sphere { <2.35 - Age*4.2, 3.35 + 1.6*sqrt(Age) + 0.12*sin(K*2.1), 0.25*sin(K*1.7)>, 0.16 + 0.42*Age
      pigment { rgbt <1, 1, 1, 0.12 + 0.86*Age> } finish { ambient 0 diffuse 0.75 emission 0.25 } no_shadow }
  #end
  translate <Way, 0.24, -0.6>
}
// ---- track: beech rails on sleepers
box { <-30, 0.10, -1.62>, <30, 0.24, -1.28> texture { Beech } }
box { <-30, 0.10, 0.08>, <30, 0.24, 0.42> texture { Beech } }
#for (I, -14, 14) object { Block(<I*1.15 - 0.22, 0, -2.0>, <I*1.15 + 0.22, 0.12, 0.8>) pigment { rgb <0.40, 0.22, 0.10> } finish { Lacquer } } #end
// ---- rug, wall, blocks and a ball
plane { y, 0 pigment { bozo color_map { [0 rgb <0.60, 0.42, 0.26>] [1 rgb <0.72, 0.54, 0.36>] } scale 0.4 } normal { bumps 0.4 scale 0.06 } finish { ambient 0 diffuse 0.85 } }
plane { -z, -8 pigment { gradient x color_map { [0 rgb <0.30, 0.50, 0.66>] [0.5 rgb <0.30, 0.50, 0.66>] [0.5 rgb <0.36, 0.57, 0.72>] [1 rgb <0.36, 0.57, 0.72>] } scale 1.6 } finish { ambient 0 diffuse 0.8 } }
#macro Letter(C, X, Y, Z, Turn, Face, Ink)
  union {
    object { Block(<-0.8, 0, -0.8>, <0.8, 1.6, 0.8>) texture { Beech } }
    object { Block(<-0.66, 0.14, -0.84>, <0.66, 1.46, -0.7>) pigment { Face } finish { Lacquer } }
    text { ttf "cyrvetic.ttf", C, 0.1, 0 scale 1.45 translate <-0.46, 0.32, -0.90> pigment { Ink } finish { Lacquer } }
    rotate Turn*y translate <X, Y, Z>
  }
#end
Letter("A", -4.6, 0, 3.4, 8, rgb <0.95, 0.92, 0.84>, rgb <0.75, 0.05, 0.04>)
Letter("B", -2.8, 0, 3.7, -6, rgb <0.95, 0.92, 0.84>, rgb <0.05, 0.20, 0.58>)
Letter("C", -3.7, 1.6, 3.5, 3, rgb <0.95, 0.92, 0.84>, rgb <0.08, 0.40, 0.14>)
sphere { <4.3, 1.5, 3.6>, 1.5
  pigment { radial color_map { [0 rgb <0.85, 0.06, 0.05>] [0.5 rgb <0.85, 0.06, 0.05>] [0.5 rgb 0.95] [1 rgb 0.95] } frequency 4 rotate <65, 0, 25> translate <4.3, 1.5, 3.6> } finish { Lacquer } }
