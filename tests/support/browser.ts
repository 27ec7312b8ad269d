import assert from 'node:assert/strict'
import type { TestApp } from './service.ts'

// biome-ignore lint/suspicious/noExplicitAny: a test reads whatever shape it asserts on
export type Answer = { status: number; body: any; cookies: string[]; location: string | null }

/** A browser without pages: keeps the cookie of its session, sends the token against cross-site requests. */
export function newBrowser(app: Pick<TestApp, 'url' | 'services'>, headers: Record<string, string> = {}) {
  let cookie: string | undefined
  let csrf: string | undefined
  async function send(
    method: string,
    route: string,
    body?: object,
    more: Record<string, string> = {},
  ): Promise<Answer> {
    const response = await fetch(app.url + route, {
      method,
      redirect: 'manual',
      headers: {
        ...(body && { 'content-type': 'application/json' }),
        ...(cookie && { cookie }),
        ...(csrf && { 'x-csrf-token': csrf }),
        ...headers,
        ...more,
      },
      ...(body && { body: JSON.stringify(body) }),
    })
    const cookies = response.headers.getSetCookie()
    for (const each of cookies)
      if (each.includes('tunery_session')) cookie = each.includes('Max-Age=0') ? undefined : each.split(';')[0]
    const text = await response.text()
    const answer = {
      status: response.status,
      body: text.startsWith('{') ? JSON.parse(text) : undefined,
      cookies,
      location: response.headers.get('location'),
    }
    if (route === '/session' && answer.status === 200) csrf = answer.body.csrf_token
    return answer
  }
  return {
    send,
    /** Signs in with a link, and reads the session. */
    async enter(email?: string) {
      const { token } = await app.services.signIn.createLink(email)
      assert.equal((await send('POST', '/sign-in/link', { token })).status, 200)
      return (await send('GET', '/session')).body
    },
    cookie: () => cookie!,
    csrf: () => csrf!,
  }
}

export const codeOf = ({ status, body }: Pick<Answer, 'status' | 'body'>) => [status, body?.error?.code]
