import { useMutation } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { KeyRound } from 'lucide-react'
import { useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { fieldError, formError } from '../../lib/errors.ts'
import { leastPassword } from '../../lib/secret.ts'
import { type Session, useSessionQuery } from '../../lib/session.ts'
import { addPasskey, deviceName, passkeysWork, setPassword } from '../../lib/sign-in.ts'
import { Centered, Or } from '../../ui/brand.tsx'
import { Button, TextLink } from '../../ui/button.tsx'
import { ErrorState, Notice, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Form, Input } from '../../ui/field.tsx'
import { NewPassword } from '../../ui/new-password.tsx'
import { Redirect } from '../../ui/redirect.tsx'
import { Message } from '../../ui/values.tsx'

/** After the first sign-in by a link, which works once: sets up the way in for the next time. */
export default function WelcomePage() {
  const session = useSessionQuery()
  if (session.data === null) return <Redirect to="/sign-in" />
  return (
    <Centered
      title="Welcome to Tunery"
      description="Your sign-in link works once. Set up how you sign in from now on."
      footer={<TextLink to="/">Skip for now</TextLink>}
    >
      {session.data ? (
        <Ways session={session.data} />
      ) : session.isError ? (
        <ErrorState error={session.error} retry={() => void session.refetch()} />
      ) : (
        <SkeletonLines lines={4} />
      )}
    </Centered>
  )
}

function Ways({ session }: { session: Session }) {
  const navigate = useNavigate()
  const enter = () => navigate({ to: '/', replace: true })
  const [name, setName] = useState(session.profile.name)
  const [email, setEmail] = useState(session.profile.email ?? '')
  const [password, change] = useState('')
  const saveName = async () => {
    const changes = { ...(name !== session.profile.name && { name }), ...(email && { email }) }
    if (Object.keys(changes).length > 0) await tunery.user.update(changes)
  }
  const byPassword = useMutation({
    mutationFn: async () => {
      await saveName()
      await setPassword(password, email)
    },
    onSuccess: enter,
  })
  const byPasskey = useMutation({
    mutationFn: async () => {
      await saveName()
      await addPasskey(deviceName())
    },
    onSuccess: enter,
  })
  const error = byPassword.error ?? byPasskey.error
  const problem = formError(error, ['name', 'email', 'password'])
  return (
    <Form onSubmit={() => byPassword.mutate()}>
      <Field label="Name" error={fieldError(error, 'name')}>
        <Input name="name" autoComplete="name" value={name} onChange={(event) => setName(event.target.value)} />
      </Field>
      <Field label="Email" help="You sign in with it. We never send email." error={fieldError(error, 'email')}>
        <Input
          type="email"
          name="email"
          autoComplete="username"
          required
          value={email}
          onChange={(event) => setEmail(event.target.value)}
        />
      </Field>
      <NewPassword value={password} onChange={change} error={fieldError(byPassword.error, 'password')} />
      {problem && (
        <Notice tone="bad">
          <Message text={problem} />
        </Notice>
      )}
      <Button
        type="submit"
        variant="primary"
        busy={byPassword.isPending}
        disabled={!email || password.length < leastPassword}
      >
        Set password
      </Button>
      {(!email || password.length < leastPassword) && (
        <p className="text-sm text-muted">
          {email ? `Enter a password of at least ${leastPassword} characters.` : 'Enter your email and a password.'}
        </p>
      )}
      <Or />
      <Button
        icon={<KeyRound aria-hidden />}
        busy={byPasskey.isPending}
        disabled={!passkeysWork()}
        onClick={() => byPasskey.mutate()}
      >
        Create a passkey
      </Button>
      {!passkeysWork() && <p className="text-sm text-muted">Passkeys need HTTPS or localhost.</p>}
    </Form>
  )
}
