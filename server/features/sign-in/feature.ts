import { runPeriodically } from '../../../lib/periodic.ts'
import { ConfigError } from '../../config.ts'
import type { Secrets } from '../../platform/storage/secrets.ts'
import type { Accounts } from '../accounts/index.ts'
import type { Context, Feature } from '../feature.ts'
import { Identities } from './identities.ts'
import { createOidc } from './oidc.ts'
import { Passkeys } from './passkeys.ts'
import { signInRoutes } from './routes.ts'
import { SignIn } from './service.ts'
import { Sessions } from './sessions.ts'
import { createSignInThrottle, type SignInThrottle } from './throttle.ts'

const flush_ms = 15_000

export function createSignInFeature(
  context: Context,
  { accounts, secrets }: { accounts: Accounts; secrets: Secrets },
): Feature & { signIn: SignIn; sessions: Sessions; throttle: SignInThrottle } {
  const { db, now, log, changes } = context
  const { config } = context
  const { oidc_issuer, oidc_client_id, oidc_client_secret, public_url } = config
  if (oidc_issuer && !(oidc_client_id && oidc_client_secret))
    throw new ConfigError('TUNERY_OIDC_ISSUER needs TUNERY_OIDC_CLIENT_ID and TUNERY_OIDC_CLIENT_SECRET.')
  if (!oidc_issuer && (oidc_client_id || oidc_client_secret || config.oidc_sign_up.length > 0))
    throw new ConfigError('The TUNERY_OIDC_ settings need TUNERY_OIDC_ISSUER, the address of the provider.')
  const sessions = new Sessions(db, changes, now)
  context.running.define('session', (ids) => sessions.current(ids))
  const throttle = createSignInThrottle(now, context.redis)
  const signIn = new SignIn({ db, accounts, sessions, throttle, changes, now })
  const passkeys = new Passkeys(db, now)
  const identities = new Identities({
    db,
    changes,
    now,
    members: accounts.members,
    sign_up: config.oidc_sign_up,
    sign_up_role: config.oidc_sign_up_role,
  })
  const oidc = oidc_issuer
    ? createOidc(
        { issuer: oidc_issuer, client_id: oidc_client_id!, client_secret: oidc_client_secret!, name: config.oidc_name },
        { secrets, now },
      )
    : undefined
  return {
    signIn,
    sessions,
    throttle,
    mount: (app) =>
      signInRoutes(app, {
        accounts,
        signIn,
        sessions,
        passkeys,
        identities,
        oidc,
        public_url,
        countRequest: throttle.countRequest,
      }),
    async start() {
      // The times of last use only help people to recognize a session: a gap is acceptable.
      const flush = () => sessions.flush().catch((error) => log.warn({ err: error }, 'sessions could not be flushed'))
      const flushing = runPeriodically(flush_ms, flush)
      return [
        {
          async close() {
            await flushing.close()
            await flush()
          },
        },
      ]
    },
  }
}
