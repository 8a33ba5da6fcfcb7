// A yellow rubber duck wearing a hand-knitted scarf, on a wooden shelf.
// CC0-1.0
#version 3.7;
global_settings {
  assumed_gamma 1.0
  max_trace_level 6
  radiosity { pretrace_start 0.08 pretrace_end 0.02 count 80 nearest_count 8 error_bound 0.7 recursion_limit 2 gray_threshold 0.2 brightness 0.8 }
}
#include "functions.inc"

camera { location <-3.2, 4.6, -15> look_at <0.0, 2.85, 0> right x*image_width/image_height angle 38 }
light_source { <-16, 20, -15>, rgb <1.35, 1.28, 1.15> area_light x*6, y*6, 7, 7 adaptive 1 circular orient jitter }
light_source { <22, 12, -10>, rgb <0.22, 0.26, 0.34> area_light x*8, y*8, 4, 4 adaptive 1 circular orient jitter }
sky_sphere { pigment { gradient y color_map { [0 rgb <0.75, 0.78, 0.82>] [1 rgb <0.95, 0.97, 1.0>] } } }
// a softbox that is only seen as a highlight
box { <-2.2, -2.2, 0>, <2.2, 2.2, 0.1> rotate <35, 42, 0> translate <-9, 12, -10> pigment { rgb 1 } finish { emission 2.2 diffuse 0 ambient 0 } no_shadow no_image no_radiosity }

// ---- shelf and wall
#declare Plank = texture {
  pigment { wood turbulence <0.06, 0.06, 0.6> octaves 4 color_map {
    [0 rgb <0.58, 0.35, 0.17>] [0.5 rgb <0.50, 0.28, 0.12>] [0.8 rgb <0.40, 0.20, 0.08>] [1 rgb <0.58, 0.35, 0.17>] }
    scale <0.5, 0.5, 9> rotate <2, 88, 0> }
  normal { wood 0.05 turbulence 0.1 scale <0.5, 0.5, 9> rotate <2, 88, 0> }
  finish { ambient 0 diffuse 0.75 specular 0.25 roughness 0.03 reflection { 0.0, 0.12 fresnel on } conserve_energy } }
#for (I, -2, 3)
  superellipsoid { <0.02, 0.02> scale <30, 0.3, 1.72> translate <0, -0.3, 0> texture { Plank translate <7.3*I, 1.7*I, 3*I> } interior { ior 1.4 } translate z*(3.5*I - 1.5) }
#end
plane { -z, -9.5
  pigment { rgb <0.33, 0.56, 0.58> }
  normal { granite 0.05 scale 2 } finish { ambient 0 diffuse 0.8 } }

// ---- the duck: beak towards the left front
#declare Rubber = finish { ambient 0 diffuse 0.8 specular 0.55 roughness 0.006 reflection { 0.015, 0.22 fresnel on } conserve_energy }
#declare Duck = union {
  blob { threshold 0.5
    sphere { 0, 1, 1.1 scale <3.35, 2.35, 2.55> translate <0.3, 1.45, 0> }
    sphere { 0, 1, 0.9 scale <2.2, 2.1, 2.1> translate <-1.05, 1.55, 0> }
    sphere { 0, 1, 0.6 scale <1.7, 1.15, 1.7> rotate 35*z translate <2.0, 2.0, 0> }
    sphere { 0, 1, 0.6 scale <1.35, 0.8, 1.25> rotate 42*z translate <2.6, 2.55, 0> }
    sphere { 0, 1, 0.5 scale <0.9, 0.45, 0.75> rotate 48*z translate <3.0, 3.05, 0> }
    cylinder { <-1.15, 1.8, 0>, <-1.25, 3.6, 0>, 1.35, 0.9 }
    pigment { rgb <0.98, 0.70, 0.03> } finish { Rubber } interior { ior 1.5 }
  }
  sphere { 0, 1.52 scale <1.02, 0.97, 0.97> translate <-1.3, 4.45, 0> pigment { rgb <0.98, 0.70, 0.03> } finish { Rubber } interior { ior 1.5 } }
  // wings
  #for (Side, -1, 1, 2)
    blob { threshold 0.5
      sphere { 0, 1, 1 scale <1.45, 0.85, 0.50> translate <0.55, 1.75, 0> }
      sphere { 0, 1, 0.9 scale <0.95, 0.55, 0.42> rotate 25*z translate <1.45, 2.1, 0> }
      sphere { 0, 1, 0.6 scale <0.6, 0.35, 0.35> rotate 35*z translate <1.95, 2.45, 0.0> }
      rotate Side*-14*x translate <0, 0.05, Side*1.72>
      pigment { rgb <0.97, 0.66, 0.02> } finish { Rubber } interior { ior 1.5 }
    }
    // eyes
    union {
      sphere { 0, 0.30 scale <0.55, 1.15, 1> pigment { rgb 0.97 } }
      sphere { 0, 0.20 scale <0.6, 1.2, 1> translate <-0.085, -0.01, 0> pigment { rgb 0.008 } }
      sphere { 0, 0.055 translate <-0.20, 0.11, 0.03> pigment { rgb 1 } }
      finish { Rubber } interior { ior 1.5 }
      translate -1.42*x rotate z*-17 rotate y*(Side*42) translate <-1.3, 4.45, 0>
    }
  #end
  // beak
  blob { threshold 0.5
    sphere { 0, 1, 1 scale <1.05, 0.30, 0.95> rotate -10*z translate <-0.55, 0.16, 0> }
    sphere { 0, 1, 0.8 scale <0.75, 0.26, 0.80> rotate -28*z translate <-1.05, 0.26, 0> }
    pigment { rgb <0.92, 0.26, 0.02> } finish { Rubber } interior { ior 1.5 }
    translate <-2.45, 4.05, 0>
  }
  blob { threshold 0.5
    sphere { 0, 1, 1 scale <0.90, 0.24, 0.80> rotate 14*z translate <-0.42, -0.10, 0> }
    pigment { rgb <0.85, 0.21, 0.02> } finish { Rubber } interior { ior 1.5 }
    translate <-2.45, 4.0, 0>
  }
}

// ---- the scarf: every stitch is a V of two leaning grains of yarn
#declare Wool = finish { ambient 0 diffuse 0.85 }
#macro Grain(Colour)
  sphere { 0, 1 scale <0.068, 0.125, 0.062>
    pigment { Colour } normal { gradient y 0.9 triangle_wave scale 0.045 rotate 55*z } finish { Wool } }
#end
#declare Blue = rgb <0.05, 0.16, 0.45>; #declare Cream = rgb <0.90, 0.85, 0.72>; #declare Crimson = rgb <0.62, 0.04, 0.07>;
#declare Stripes = array[10] { Blue, Blue, Blue, Blue, Blue, Cream, Cream, Crimson, Cream, Cream }

// around the neck: a torus of stitches, wales running round the tube
#declare Neck_R = 1.22; #declare Tube = 0.40;
#declare Around = union {
  #local NA = 76; #local NB = 20;
  #for (I, 0, NA - 1)
    #local Colour = Stripes[mod(I, 10)];
    #for (J, 0, NB - 1)
      #for (Side, -1, 1, 2)
        object { Grain(Colour)
          rotate z*Side*26 translate <Side*0.062, 0, -Tube>
          // x of a stitch runs along the tube's girth, y along the neck
          rotate z*90
          rotate x*(J/NB*360) translate <0, 0, -Neck_R> rotate y*(I/NA*360) }
      #end
    #end
  #end
  torus { Neck_R, Tube*0.93 pigment { Blue*0.5 } finish { Wool } }
}
// a loose end hanging down the breast: a bent strip of stitches with a fringe
#macro End_Point(S) #local Q = S; <0, -2.05*Q, -0.30*sin(Q*2.3) - 0.12*Q> #end
#macro Loose_End(Rows)
  union {
    #for (I, 0, Rows - 1)
      #local S = I/Rows; #local P = End_Point(S);
      #local Colour = Stripes[mod(I + 5, 10)];
      #for (J, -4, 4)
        #for (Side, -1, 1, 2)
          object { Grain(Colour) rotate z*Side*-26 translate <J*0.155 + Side*0.045, 0, 0> translate P }
          object { Grain(Colour) rotate z*Side*-26 translate <J*0.155 + Side*0.045, 0, 0.09> translate P }
        #end
      #end
    #end
    #local R = seed(4); #local P = End_Point(1);
    #for (J, -4, 4)
      #for (K, 0, 2)
        #local Dx = (rand(R) - 0.5)*0.12; #local Dz = (rand(R) - 0.5)*0.2;
        sphere_sweep { b_spline 5, P + <J*0.155, 0.15, 0>, 0.03 P + <J*0.155, 0.05, 0>, 0.035 P + <J*0.155 + Dx*0.5, -0.15, Dz*0.3>, 0.03 P + <J*0.155 + Dx, -0.36, Dz>, 0.026 P + <J*0.155 + Dx*1.4, -0.52, Dz>, 0.02
          pigment { Cream } finish { Wool } }
      #end
    #end
  }
#end
#declare Scarf = union {
  object { Around scale <1, 0.92, 1> rotate <0, 0, 5> translate <-1.22, 3.02, 0> }
  object { Loose_End(19) rotate <0, 20, 0> rotate -8*z translate <-1.55, 3.1, -1.62> }
  object { Loose_End(15) rotate <0, 40, 0> rotate 12*z translate <-2.28, 2.95, -1.20> }
  // the knot
  union {
    #for (I, 0, 8) #for (J, 0, 15) #for (Side, -1, 1, 2)
      object { Grain(Blue) rotate z*Side*26 translate <Side*0.055, 0, -0.42*sqrt(1 - 0.75*pow(I/4 - 1, 4))> rotate y*(J*22.5) translate y*(I*0.15 - 0.6)*0.62 }
    #end #end #end
    sphere { 0, 0.41 scale <1, 1.12, 1> pigment { Blue*0.6 } finish { Wool } }
    rotate <0, 20, -70> translate <-1.75, 3.0, -1.58>
  }
}
union { object { Duck } object { Scarf } rotate -30*y translate <0.35, -0.06, 0> }

// ---- soap bubbles on the shelf
#local R = seed(7);
#macro Bubble(P, Rad)
  sphere { P, Rad hollow
    texture {
      pigment { rgbt <1, 1, 1, 0.96> }
      finish { ambient 0 diffuse 0.02 specular 1.2 roughness 0.0015 reflection { 0.03, 0.75 fresnel on } irid { 0.25 thickness 0.6 turbulence 0.7 } conserve_energy } }
    interior { ior 1.02 } no_shadow }
#end
Bubble(<-4.4, 0.75, -1.2>, 0.75) Bubble(<-5.3, 0.42, -2.0>, 0.42) Bubble(<-4.3, 0.30, -3.0>, 0.30) Bubble(<4.3, 0.6, -1.9>, 0.6) Bubble(<5.1, 0.34, -2.3>, 0.34) Bubble(<-4.6, 4.9, 1.5>, 0.5)
