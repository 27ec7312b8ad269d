/**
 * Where people reach the dashboard, without a slash at its end: as set, else where the service listens. `localhost` for
 * 127.0.0.1: browsers allow passkeys for names alone.
 */
export const dashboardAddress = (listens: string, public_url: string | undefined): string =>
  (public_url ?? listens.replace(/^http:\/\/127\.0\.0\.1(?=[:/]|$)/, 'http://localhost')).replace(/\/$/, '')
