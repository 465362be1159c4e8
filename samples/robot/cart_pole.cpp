#include "cart_pole.h"

#include <cmath>

namespace {

constexpr float kGravity = 9.81f;    // m/s^2
constexpr float kCartMass = 1.0f;    // kg
constexpr float kPoleMass = 0.1f;    // kg, spread evenly along the pole
constexpr float kHalfLength = 0.5f;  // m, from the hinge to the pole's centre of mass
constexpr float kTrack = 2.4f;       // m, from the middle to either end
constexpr float kTilt = 0.6f;        // rad, beyond which the pole counts as fallen

}  // namespace

// No friction. With M the cart's mass, m the pole's, l the half length, F the force and a the angle, Newton's law for
// both bodies without the force in the hinge leaves
//   (M + m) x'' + m l (a'' cos a - a'^2 sin a) = F      along the track
//   (4/3) l a'' + x'' cos a = g sin a                   around the hinge; the rod's inertia about it is (4/3) m l^2
// which is solved for a'' and then x''. Velocities are advanced first and carry the positions along (semi-implicit
// Euler), so that a swinging pole gains no energy from the integration.
void CartPole::advance(float force) {
  const float mass = kCartMass + kPoleMass;
  const float sine = std::sin(angle), cosine = std::cos(angle);
  const float pull = (force + kPoleMass * kHalfLength * angular_velocity * angular_velocity * sine) / mass;
  const float angular_acceleration =
      (kGravity * sine - cosine * pull) / (kHalfLength * (4.0f / 3.0f - kPoleMass * cosine * cosine / mass));
  const float acceleration = pull - kPoleMass * kHalfLength * angular_acceleration * cosine / mass;
  velocity += acceleration * kStep;
  angular_velocity += angular_acceleration * kStep;
  position += velocity * kStep;
  angle += angular_velocity * kStep;
}

bool CartPole::has_fallen() const { return !(std::fabs(position) <= kTrack && std::fabs(angle) <= kTilt); }

// For policy.lua, through LuaJIT's FFI: advances `count` poles (rows of a float array) for `steps` steps, each under
// its own constant force. One that has fallen stays as it is; upright[i] says which are left.
extern "C" __attribute__((visibility("default"))) void robot_advance(CartPole* poles, const float* forces,
                                                                     int32_t* upright, int32_t count, int32_t steps) {
  for (int32_t i = 0; i < count; ++i) {
    for (int32_t step = 0; step < steps && !poles[i].has_fallen(); ++step) poles[i].advance(forces[i]);
    upright[i] = !poles[i].has_fallen();
  }
}
