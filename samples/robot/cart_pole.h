// The robot's world: a pole hinged on a cart, which a force pushes along a track. The control loop lives in it at 1
// kHz, and the training script in many of them at once, in the same equations.
#pragma once

#include <cstdint>

// SI units throughout.
struct CartPole {
  float position;          // of the cart, m; 0 in the middle of the track
  float velocity;          // m/s
  float angle;             // of the pole, rad; 0 upright, positive to the side of positive positions
  float angular_velocity;  // rad/s

  // One step of the simulation under a force on the cart, in N. A step is kStep long.
  void advance(float force);
  bool has_fallen() const;
};

constexpr float kStep = 0.001f;         // s
constexpr float kLargestForce = 10.0f;  // N, either way
