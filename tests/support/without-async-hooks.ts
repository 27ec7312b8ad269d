// Loaded before node:test, which follows every promise with an async hook, to tell which test an error belongs to that
// is thrown after its test's end. That takes half of a test's CPU time. Without it such an error still fails its file.
import hooks from 'node:async_hooks'

const { createHook } = hooks
let hook: hooks.AsyncHook | undefined
let wanted = false
/** The first call is the test runner's, with its first test or suite. */
hooks.createHook = (callbacks) => {
  hooks.createHook = createHook
  hook = createHook(callbacks)
  if (wanted) hook.enable()
  const none = { enable: () => none, disable: () => none }
  return none
}

/** Runs this with the hook: `describe` needs it to know what its function declares. */
export function withAsyncHook(declare: () => void): void {
  wanted = true
  hook?.enable()
  declare()
  hook?.disable()
  wanted = false
}
