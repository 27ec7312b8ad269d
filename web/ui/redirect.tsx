import { useNavigate } from '@tanstack/react-router'
import { useEffect } from 'react'

/**
 * Goes to an address, in place of this one in the history. Once: the router's own `Navigate` goes again at every
 * render, also while it is on its way.
 */
export function Redirect({ to }: { to: string }) {
  const navigate = useNavigate()
  useEffect(() => {
    void navigate({ href: to, replace: true })
  }, [navigate, to])
  return null
}
