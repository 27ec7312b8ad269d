import { useMutation, useQuery } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { useEffect, useRef, useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { safeNext, useSecretOfLink } from '../../lib/secret.ts'
import { type Session, useSessionQuery } from '../../lib/session.ts'
import { type SignInWays, signInByLink, signInByPasskey, signInByPassword } from '../../lib/sign-in.ts'
import { Centered, Or, PasskeyButton } from '../../ui/brand.tsx'
import { Button, buttonClass } from '../../ui/button.tsx'
import { FormError, Loaded, Notice, Progress } from '../../ui/feedback.tsx'
import { Field, Form, Input } from '../../ui/field.tsx'
import { Redirect } from '../../ui/redirect.tsx'
import { Code } from '../../ui/values.tsx'

export default function SignInPage() {
  const { next, error } = useSearch({ from: '/sign-in' })
  const token = useSecretOfLink()
  const navigate = useNavigate()
  const session = useSessionQuery()
  const ways = useQuery({ queryKey: ['sign-in'], queryFn: ({ signal }) => tunery.signIn.ways({ signal }) })
  const enter = ({ has_password, has_passkey }: Session, byLink = false) =>
    // Who came by a link and has no other way in yet is asked to make one.
    navigate({ href: byLink && !has_password && !has_passkey ? '/welcome' : safeNext(next), replace: true })

  const link = useMutation({ mutationFn: signInByLink, onSuccess: (session) => enter(session, true) })
  const used = useRef<string>(undefined)
  useEffect(() => {
    // Once each: it works once.
    if (!token || used.current === token) return
    used.current = token
    link.mutate(token)
  }, [token, link])

  if (link.isPending || (token && link.isIdle))
    return (
      <Centered title="Signing in">
        <Progress value={null} label="Signing in" />
      </Centered>
    )
  if (session.data && link.isIdle) return <Redirect to={safeNext(next)} />
  return (
    <Centered title="Sign in">
      <FormError error={link.error} title="The link did not work" />
      {error && !link.isError && (
        <Notice tone="bad">{oidcErrors[error] ?? `Signing in there failed (${error}). Try again.`}</Notice>
      )}
      <Loaded query={ways}>{(available) => <Ways ways={available} next={next} enter={enter} />}</Loaded>
    </Centered>
  )
}

/** Codes that the address carries after a sign-in elsewhere. */
const oidcErrors: Record<string, string> = {
  oidc_cancelled: 'You cancelled signing in there.',
  oidc_no_account: 'Nobody here has the email of that account. Ask an admin for an invitation.',
  oidc_expired: 'Signing in there took too long. Try again.',
  oidc_sign_in_first:
    'Sign in here in another way first: with a link, a password or an invitation. Then connect the provider in your ' +
    'settings; from then on it works by itself.',
  oidc_unavailable: 'The provider cannot be reached now. Try again, or sign in in another way.',
  oidc_unverified: 'The provider has not verified the email of that account. Verify it there, then try again.',
  too_many_tries: 'Too many tries to sign in. Try again in a minute.',
}

function Ways({
  ways,
  next,
  enter,
}: {
  ways: SignInWays
  next?: string | undefined
  enter: (session: Session) => unknown
}) {
  const passkey = useMutation({ mutationFn: signInByPasskey, onSuccess: (session) => enter(session) })
  const address = next ? `/v1/sign-in/oidc?next=${encodeURIComponent(safeNext(next))}` : '/v1/sign-in/oidc'
  if (ways.first)
    return (
      <Notice tone="accent" title="Nobody has signed in yet">
        Open the link that Tunery printed when it started. It is also in <Code>sign-in-link.txt</Code> in the service's
        data folder. <Code>./tunery sign-in-link</Code> on that machine creates a new one.
      </Notice>
    )
  if (!ways.password && !ways.passkey && !ways.oidc)
    return (
      <Notice tone="accent" title="Nobody has a password or a passkey yet">
        On the service's machine, <Code>./tunery sign-in-link</Code> makes a link that signs you in once.
      </Notice>
    )
  return (
    <>
      {ways.password && <PasswordForm enter={enter} />}
      {(ways.passkey || ways.oidc) && ways.password && <Or />}
      {ways.passkey && (
        <PasskeyButton busy={passkey.isPending} onClick={() => passkey.mutate()}>
          Sign in with a passkey
        </PasskeyButton>
      )}
      <FormError error={passkey.error} />
      {ways.oidc && (
        <a href={address} className={buttonClass()}>
          Sign in with {ways.oidc}
        </a>
      )}
      <p className="text-sm text-muted">
        No way in? <Code>./tunery sign-in-link</Code> on the service's machine makes a link that works once.
      </p>
    </>
  )
}

function PasswordForm({ enter }: { enter: (session: Session) => unknown }) {
  const [email, setEmail] = useState('')
  const [password, setPassword] = useState('')
  const signIn = useMutation({
    mutationFn: () => signInByPassword(email.trim(), password),
    onSuccess: (session) => enter(session),
  })
  return (
    <Form onSubmit={() => signIn.mutate()}>
      <Field label="Email">
        <Input
          type="email"
          name="email"
          autoComplete="username webauthn"
          required
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <Field label="Password">
        <Input
          type="password"
          name="password"
          autoComplete="current-password"
          required
          value={password}
          onChange={(event) => setPassword(event.target.value)}
        />
      </Field>
      <FormError error={signIn.error} />
      <Button type="submit" variant="primary" busy={signIn.isPending} disabled={!email || !password}>
        Sign in
      </Button>
    </Form>
  )
}
