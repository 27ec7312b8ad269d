// A real OpenID provider on a free port, and a browser that keeps cookies and follows redirects.
import http from 'node:http'
import type { AddressInfo } from 'node:net'
// @ts-expect-error: the package has no types
import Provider from 'oidc-provider'

export interface Person {
  email?: string
  email_verified?: boolean
}

/**
 * Starts the provider. Signs in whoever `as` names, without asking. `inIdToken`: also puts the email into the ID
 * token; by the standard it is told by the userinfo endpoint alone.
 */
export async function startOpenidProvider(people: Record<string, Person>, { inIdToken = false } = {}) {
  // biome-ignore lint/suspicious/noExplicitAny: the package has no types
  let provider: any
  let person = Object.keys(people)[0]!
  const server = http.createServer(async (request, response) => {
    const [, uid] = /^\/interaction\/(\w|-)+/.exec(request.url!) ?? []
    if (!uid) return provider.callback()(request, response)
    await provider.interactionFinished(request, response, { login: { accountId: person } })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    issuer,
    client_id: 'tunery',
    client_secret: 'a secret of the client',
    /** Whom the next sign-in there signs in. */
    signInAs: (name: string) => {
      person = name
    },
    /** Registers the service, whose address is known only now. */
    register(redirect_uri: string) {
      provider = new Provider(issuer, {
        clients: [{ client_id: 'tunery', client_secret: 'a secret of the client', redirect_uris: [redirect_uri] }],
        cookies: { keys: ['a key for the cookies'] },
        features: { devInteractions: { enabled: false } },
        pkce: { required: () => true },
        claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'] },
        conformIdTokenClaims: !inIdToken,
        interactions: { url: (_: unknown, { uid }: { uid: string }) => `/interaction/${uid}` },
        findAccount: (_: unknown, id: string) => ({ accountId: id, claims: () => ({ sub: id, ...people[id] }) }),
        // Nobody is asked for consent.
        async loadExistingGrant({ oidc }: { oidc: { client: { clientId: string }; session: { accountId: string } } }) {
          const grant = new provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId })
          grant.addOIDCScope('openid email profile')
          await grant.save()
          return grant
        },
      })
    },
    async stop() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** What a person who comes from the provider may choose from, and how they choose. */
export function accountChoices(browser: ReturnType<typeof createBrowser>, url: string) {
  const address = `${url}/sign-in/oidc/accounts`
  return {
    async list() {
      const response = await browser.open(address)
      // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
      return { status: response.status, body: (await response.json()) as any }
    },
    async choose(user_id: string | null) {
      const body = JSON.stringify({ user_id })
      const response = await browser.open(address, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body,
      })
      // biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
      return { status: response.status, body: (await response.json()) as any }
    },
  }
}

/** A browser: keeps cookies by host and port, and follows redirects one by one. Sends `own` headers. */
export function createBrowser(headers: Record<string, string> = {}) {
  const jar = new Map<string, Map<string, string>>()
  async function open(address: string, init: RequestInit = {}): Promise<Response> {
    const { host } = new URL(address)
    const cookies = jar.get(host) ?? new Map<string, string>()
    jar.set(host, cookies)
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ')
    const response = await fetch(address, {
      redirect: 'manual',
      ...init,
      headers: { ...headers, ...init.headers, cookie },
    })
    for (const cookie of response.headers.getSetCookie()) {
      const [pair = '', ...attributes] = cookie.split(/; */)
      const [name = '', value = ''] = [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]
      const isGone = attributes.some((text) => /^max-age=0$|^expires=Thu, 01 Jan 1970/i.test(text))
      if (isGone) cookies.delete(name)
      else cookies.set(name, value)
    }
    return response
  }
  return {
    open,
    cookies: (host: string) => jar.get(host) ?? new Map<string, string>(),
    /** Follows redirects until an address matches, which it does not open, or until one is not a redirect. */
    async follow(address: string, until: (address: string) => boolean): Promise<string> {
      let current = address
      for (let count = 0; count < 20 && !until(current); count++) {
        const response = await open(current)
        await response.arrayBuffer()
        const location = response.headers.get('location')
        if (response.status < 300 || response.status >= 400 || !location) return current
        current = new URL(location, current).href
      }
      return current
    },
  }
}
