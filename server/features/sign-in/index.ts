// Sign-in to the dashboard and its sessions. What the rest of the service may import.
export { dashboardAddress } from './address.ts'
export { SeveralMembers, SignIn } from './service.ts'
export { Sessions } from './sessions.ts'
export { createSignInThrottle, type SignInThrottle } from './throttle.ts'
