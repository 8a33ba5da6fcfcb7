// A red toy sailboat crosses a small harbour. Declare=Daylight=0 is the start (dawn, boat at the left),
// Declare=Daylight=1 the end (full daylight, boat at the right, camera moved to the right and up).
// CC0-1.0
#version 3.7;
#ifndef (Daylight) #declare Daylight = 0; #end
#macro Mix(Dawn, Day) (Dawn*(1 - Daylight) + Day*Daylight) #end
global_settings {
  assumed_gamma 1.0
  max_trace_level 8
  radiosity { pretrace_start 0.08 pretrace_end 0.02 count 60 nearest_count 8 error_bound 0.9 recursion_limit 2 gray_threshold 0.3 brightness Mix(0.8, 0.62) }
}
#include "boat.inc"
#include "buildings.inc"

camera {
  location Mix(<-1.5, 2.6, -15>, <4.5, 4.4, -16.5>)
  look_at Mix(<0.2, 3.9, 10>, <1.5, 3.2, 10>)
  right x*1344/768 angle 50
}

// ---- light and sky
#declare Sun = vnormalize(Mix(<0.235, 0.125, 1>, <-0.55, 0.75, -0.75>));
#declare Sun_X = Sun.x; #declare Sun_Y = Sun.y; #declare Sun_Z = Sun.z;
light_source {
  Sun*1000, rgb Mix(<2.4, 1.15, 0.50>, <1.55, 1.44, 1.22>)
  area_light x*26, y*26, 4, 4 adaptive 1 circular orient jitter
}
#if (Daylight < 0.5)
  light_source { <-400, 300, -600>, rgb <0.30, 0.32, 0.48> shadowless }
  #declare Window_Glow = <2.2, 1.25, 0.40>;
#end

sky_sphere {
  pigment { gradient y
    color_map {
      [0.00 rgb Mix(<1.15, 0.52, 0.20>, <0.72, 0.84, 0.95>)]
      [0.08 rgb Mix(<1.05, 0.58, 0.34>, <0.58, 0.76, 0.95>)]
      [0.22 rgb Mix(<0.70, 0.50, 0.52>, <0.32, 0.56, 0.90>)]
      [0.50 rgb Mix(<0.26, 0.31, 0.52>, <0.13, 0.36, 0.78>)]
      [1.00 rgb Mix(<0.09, 0.14, 0.32>, <0.06, 0.22, 0.60>)]
    }
  }
  #if (Daylight < 0.5)
    pigment { function { max(0, x*Sun_X + y*Sun_Y + z*Sun_Z) }
      color_map { [0 rgbt 1] [0.90 rgbt <1, 0.45, 0.12, 1>] [0.985 rgbt <1.4, 0.70, 0.22, 0.55>] [0.9990 rgbt <2.4, 1.6, 0.8, 0.15>] [0.9995 rgb <5, 4, 2.5>] [1 rgb <5, 4, 2.5>] } }
  #end
}
// clouds on a high plane; at dawn lit from below
plane { y, 900 hollow no_shadow
  texture {
    pigment { wrinkles turbulence 0.45 octaves 6 omega 0.55 lambda 2.2
      color_map {
        [0.00 rgbt 1] [Mix(0.52, 0.50) rgbt 1]
        [0.66 rgbt Mix(<1.0, 0.52, 0.38, 0.35>, <1, 1, 1, 0.25>)]
        [0.90 rgbt Mix(<0.95, 0.62, 0.55, 0.1>, <0.93, 0.95, 0.98, 0.05>)]
      }
      scale <1500, 1, 620> translate <Mix(300, 900), 0, Mix(100, 500)>
    }
    finish { ambient 0 diffuse 0 emission Mix(0.9, 1.05) }
  }
}
fog { fog_type 2 fog_offset 0 fog_alt Mix(9, 14) distance Mix(300, 700) rgb Mix(<0.80, 0.42, 0.26>, <0.62, 0.76, 0.92>) }

// ---- water
plane { y, 0
  pigment { rgb Mix(<0.035, 0.055, 0.085>, <0.015, 0.10, 0.13>) }
  normal { average normal_map {
    [1 bumps Mix(0.42, 0.30) scale <1.5, 1, 0.55> rotate 12*y]
    [1 bumps Mix(0.34, 0.24) scale <0.55, 1, 0.22> rotate -18*y]
    [0.6 wrinkles 0.22 scale <3.5, 1, 1.6> translate 7] } }
  finish { ambient 0 diffuse 0.55 specular 0.35 roughness 0.004 reflection { 0.05, 0.95 fresnel on falloff 1 } conserve_energy }
  interior { ior 1.33 }
}

// ---- the boat, heeling a little, with its wake
#declare Boat_X = Mix(-4.6, 6.1);
#declare Boat_Z = Mix(-0.4, 0.4);
object { Sailing_Boat rotate Mix(4, 6)*x rotate 1.5*z rotate -9*y translate <Boat_X, 0.02, Boat_Z> }

// ---- quay, houses, mole with a lighthouse, hills
#declare Quay_Stone = texture {
  pigment { brick rgb <0.30, 0.28, 0.26>, rgb <0.55, 0.50, 0.44> brick_size <1.5, 0.55, 0.8> mortar 0.05 turbulence 0.05 }
  normal { granite 0.3 scale 0.8 } finish { ambient 0 diffuse 0.8 }
}
#declare Wet_Weed = texture { pigment { gradient y color_map { [0 rgbt <0.05, 0.08, 0.03, 0>] [0.6 rgbt <0.08, 0.10, 0.05, 0.2>] [1 rgbt 1] } scale 0.9 } finish { ambient 0 diffuse 0.5 } }
box { <-90, -2, 34>, <12, 1.7, 80> texture { Quay_Stone } texture { Wet_Weed } }
box { <-90, 1.7, 33.8>, <12.2, 1.95, 80> pigment { rgb <0.58, 0.54, 0.48> } finish { Plaster } }
#for (I, 0, 9)  // bollards
  lathe { linear_spline 6, <0, 0>, <0.28, 0>, <0.22, 0.45>, <0.36, 0.55>, <0.30, 0.75>, <0, 0.80>
    pigment { rgb 0.06 } finish { ambient 0 diffuse 0.6 specular 0.3 } translate <-53 + 7*I, 1.95, 35> }
#end
#macro Row(X, Wide, High, Wall, Roof, Door, Seed)
  object { House(Wide, High, Wall, Roof, Door, Seed) translate <X - 7, 1.95, 41> }
#end
#declare Tile = rgb <0.52, 0.16, 0.08>; #declare Slate = rgb <0.18, 0.20, 0.24>;
Row(-47.0, 7.0, 6.4, rgb <0.85, 0.80, 0.68>, Slate, rgb <0.10, 0.25, 0.20>, 3)
Row(-39.6, 6.6, 8.8, rgb <0.80, 0.42, 0.30>, Tile, rgb <0.12, 0.15, 0.35>, 5)
Row(-32.6, 6.2, 6.6, rgb <0.92, 0.88, 0.80>, Slate, rgb <0.55, 0.07, 0.05>, 8)
Row(-26.0, 6.6, 9.0, rgb <0.32, 0.50, 0.62>, Tile, rgb <0.85, 0.80, 0.60>, 2)
Row(-19.0, 6.2, 6.4, rgb <0.88, 0.66, 0.26>, Tile, rgb <0.10, 0.28, 0.16>, 9)
Row(-12.4, 6.8, 8.6, rgb <0.90, 0.84, 0.80>, Slate, rgb <0.12, 0.20, 0.42>, 4)
Row( -5.2, 6.2, 6.5, rgb <0.72, 0.33, 0.34>, Slate, rgb <0.88, 0.85, 0.75>, 7)
Row(  1.4, 6.4, 8.9, rgb <0.86, 0.78, 0.52>, Tile, rgb <0.45, 0.10, 0.07>, 1)
Row(  8.2, 6.2, 6.4, rgb <0.50, 0.66, 0.60>, Tile, rgb <0.15, 0.12, 0.10>, 6)
// mole and lighthouse
box { <10, -2, 59>, <27, 1.3, 64> texture { Quay_Stone } texture { Wet_Weed } }
cylinder { <26, -2, 62>, <26, 1.9, 62>, 5 texture { Quay_Stone } texture { Wet_Weed } }
object { Lighthouse(rgb Mix(<6, 4.5, 2>, <0, 0, 0>)) scale 0.92 translate <26, 1.9, 62> }
#macro Hill(X, Z, Wide, High, Tint)
  sphere { 0, 1 scale <Wide, High, Wide*0.6> translate <X, -2, Z>
    pigment { bozo turbulence 0.6 color_map { [0 Tint*0.6] [0.5 Tint] [1 Tint*1.35] } scale 6 } normal { granite 0.5 scale 20 } finish { ambient 0 diffuse 0.75 } }
#end
#declare Green = rgb <0.16, 0.27, 0.09>;
Hill(-70, 125, 62, 33, Green) Hill(-15, 140, 58, 24, Green*<0.9, 1.05, 1>) Hill(-125, 170, 80, 46, Green*0.9)
Hill(45, 260, 90, 30, Green) Hill(150, 300, 110, 44, Green*0.9)
// two moored boats and gulls
object { Hull(rgb <0.08, 0.22, 0.45>, rgb 0.08) scale 1.5 rotate 90*y translate <-10.5, 0, 28.5> }
object { Hull(rgb <0.15, 0.40, 0.25>, rgb 0.08) scale 1.35 rotate 172*y translate <3, 0, 31.0> }
#local R = seed(11);
#for (I, 0, 6)
  object { Gull(0.1 + 0.25*rand(R)) scale 0.62 rotate <0, 360*rand(R), 25*(rand(R) - 0.5)> translate <Mix(-2, -10) + 12*rand(R), Mix(8.0, 8.5) + 3.2*rand(R), 8 + 12*rand(R)> }
#end
