// Loaded before node:test, which follows every promise with an async hook, to tell which test an error belongs to that
// is thrown after its test's end. That takes half of a test's CPU time. Without it such an error still fails its file.
import hooks from 'node:async_hooks'

const { createHook } = hooks
/** The first call is the test runner's. */
hooks.createHook = () => {
  hooks.createHook = createHook
  const none = { enable: () => none, disable: () => none }
  return none
}
