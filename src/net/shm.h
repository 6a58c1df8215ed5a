/* shm.h - transport between processes of one machine through memfd memory. */
#ifndef MS_NET_SHM_H
#define MS_NET_SHM_H

#include "net/rendezvous.h"
#include "net/transport.h"

/* Meets the other ranks (for at most timeout_s, else MS_ERR_TIMEOUT with the missing ones). */
ms_status ms_shm_create(const ms_rendezvous *rendezvous, double timeout_s,
                        ms_transport **transport);

#endif
